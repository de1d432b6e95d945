"""Whether an environment already has what a package list asks for."""

import pytest

from portal.environments.contents import contradictions, installs
from portal.environments.models import Environment
from portal.projects.package_lists.model import PackageList


def has(*lines: str, constraints: tuple[str, ...] = ()) -> bool:
    base = Environment(
        packages=["torch", "numpy", "horovod"], pins=["torch==2.13.0", "horovod==0.28.2", "numpy==2.4.*"]
    )
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
        "torch==2.13.0",
        "torch>=2.0",
        "horovod>=0.28",
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
        ("emoji", "nothing shows that it is there"),
        ("seaborn[stats]", "extras bring more packages"),
        ("pandas; sys_platform == 'linux'", "markers are not evaluated"),
        ("pillow @ https://files.example.org/pillow-13.0.0.zip", "an address may have anything"),
    ],
)
def test_it_may_lack(line: str, why: str) -> None:
    assert not has("numpy", line), why


def test_lines_that_contradict_the_base_are_all_found() -> None:
    base = Environment(pins=["torch==2.13.0", "numpy==2.4.6", "scipy==1.16.0"])
    asked = ("Torch==1.13", "numpy<2", "scipy>=1.10", "rich==1.0", "torch>=3; sys_platform == 'win32'", "numpy[dev]")
    found = [(each.line, each.package, each.version) for each in contradictions(base, asked)]
    assert found == [("Torch==1.13", "torch", "2.13.0"), ("numpy<2", "numpy", "2.4.6")]
    assert contradictions(None, asked) == []


def test_constraints_count_only_if_they_are_its_own() -> None:
    assert has("pandas", constraints=("pandas<4",)) and not has("pandas", constraints=("pandas<3",))


def test_an_environment_without_known_versions_is_judged_by_its_modules() -> None:
    environment = Environment(packages=["yaml"])
    assert installs(environment, PackageList("r.txt", "requirements", ("pyyaml",)))
    assert not installs(environment, PackageList("r.txt", "requirements", ("pyyaml>=6",)))


@pytest.mark.django_db
def test_those_of_the_release_have_exact_versions() -> None:
    for row in Environment.objects.filter(recipe="", key__in=("python", "pytorch", "pytorch-horovod")):
        assert row.pins and all("==" in line for line in row.pins)
    assert "horovod" in " ".join(Environment.objects.get(key="pytorch-horovod").pins)
