"""Whether an environment already has what a package list asks for."""

import pytest

from portal.environments.contents import installs
from portal.environments.models import Environment
from portal.projects.package_lists.model import PackageList
from runners.environments import images

RELEASE = images.find("pytorch-horovod")
assert RELEASE is not None and RELEASE.horovod is not None
TORCH = next(line.partition("==")[2] for line in RELEASE.lines if line.startswith("torch=="))


def has(*lines: str, constraints: tuple[str, ...] = ()) -> bool:
    base = Environment(key="pytorch-horovod", packages=["torch", "numpy", "horovod"])
    vision = Environment(
        key="vision",
        base=base,
        lines=["pillow==13.0.0", "seaborn", "rich[jupyter]>=14", "tables>=3; python_version < '3.12'"],
        constraints=["pandas<4"],
        packages=["torch", "numpy", "horovod", "PIL", "seaborn", "pandas", "rich"],
    )
    return installs(vision, PackageList("requirements.txt", "requirements", lines, constraints))


@pytest.mark.parametrize(
    "line",
    [
        "pillow",
        "Pillow>=12",
        "seaborn",
        "pandas",
        f"torch=={TORCH}",
        "torch>=2.0",
        f"horovod=={RELEASE.horovod.version}",
        "rich[jupyter]>=14",
        "rich",
        "tables>=3; python_version < '3.12'",
    ],
)
def test_it_has(line: str) -> None:
    assert has(line)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("pillow<13", "its own line has another version"),
        ("torch==1.13.1", "the base has another version"),
        ("seaborn>=0.13", "its version is not known"),
        ("emoji", "nothing says that it is there"),
        ("seaborn[stats]", "extras bring more packages"),
        ("pandas; sys_platform == 'linux'", "markers are not evaluated"),
        ("pillow @ https://files.example.org/pillow-13.0.0.zip", "an address may have anything"),
    ],
)
def test_it_may_lack(line: str, why: str) -> None:
    assert not has("numpy", line), why


def test_constraints_count_only_if_they_are_its_own() -> None:
    assert has("pandas", constraints=("pandas<4",)) and not has("pandas", constraints=("pandas<3",))


@pytest.mark.parametrize("key", ["a-release-before", "python"])
def test_an_environment_that_lists_nothing_is_judged_by_its_modules(key: str) -> None:
    environment = Environment(key=key, packages=["yaml"])
    assert installs(environment, PackageList("r.txt", "requirements", ("pyyaml",)))
    assert not installs(environment, PackageList("r.txt", "requirements", ("pyyaml>=6",)))
