"""The environment.yml of conda."""

import pytest

from portal.projects.package_lists.conda import CondaVersionsError, translate
from portal.projects.package_lists.model import PackageList
from portal.projects.package_lists.reading import read_list

FILE = """\
name: vision
channels: [pytorch, nvidia, defaults]
dependencies:
  - python=3.10
  - pytorch=2.1
  - pytorch-cuda=12.1
  - numpy=1.26.4=py310h5f9d8c6_0
  - conda-forge::pandas 2.1.*
  - scikit-learn>=1.3,<2
  - _libgcc_mutex=0.1=main
  - gdal
  - opencv
  - pip
  - scipy[version='>=1']
  - pip:
    - rich==13.7  # colours
    - -r more.txt
    - -e .
    - git+https://x/y
variables:
  A: b
"""


def read(text: str | bytes, **others: str) -> PackageList:
    content = text.encode() if isinstance(text, str) else text
    files = {"environment.yml": content} | {f"{name}.txt": other.encode() for name, other in others.items()}
    return read_list("environment.yml", files.get)


def test_an_environment_of_conda_is_translated() -> None:
    found = read(FILE, more="tqdm\n")
    assert (found.kind, found.python) == ("conda", "3.10")
    assert found.lines == (
        "torch==2.1.*", "numpy==1.26.4", "pandas==2.1.*", "scikit-learn<2,>=1.3", "opencv-python-headless", "rich==13.7", "tqdm",
    )  # fmt: skip
    assert [each.line for each in found.refused] == [14, 18, 19]
    notes = {each.line: each.text for each in found.notes}
    assert notes[5] == "pytorch of conda is torch on the package index."
    assert [each.text for each in found.notes if each.line == 0] == [
        "Packages of conda that are not known here, so they are not installed: gdal.",
        "Left out, because tools and system libraries come from the base: pytorch-cuda, _libgcc_mutex, pip.",
        "Its environment variables are left out.",
    ]


def test_an_export_with_many_packages_has_few_notes() -> None:
    found = read("dependencies:\n" + "".join(f"  - lib{i}=1=0\n  - other{i}=2=0\n" for i in range(120)))
    assert [each.text[-12:] for each in found.notes] == ["and 70 more.", "and 70 more."] and not found.refused


@pytest.mark.parametrize(
    ("asked", "specifier"),
    [
        ("", ""), ("*", ""), ("=1.2", "==1.2.*"), ("=1.2.*", "==1.2.*"), ("==1.2", "==1.2"), ("=1.2.3=py311h1_0", "==1.2.3"),
        ("==1.2.3=py_0", "==1.2.3"), ("1.2", "==1.2"), ("1.2.*", "==1.2.*"), ("1.2*", "==1.2.*"), ("1.2 py_0", "==1.2"),
        (">=1.2", ">=1.2"), (">=1.2,<2", "<2,>=1.2"), ("!=1.3", "!=1.3"), ("~=1.3", "~=1.3"), ("=1.2=*cuda*", "==1.2"), ("= 1.2", "==1.2.*"),
    ],
)  # fmt: skip
def test_versions_of_conda_are_translated(asked: str, specifier: str) -> None:
    assert translate(asked) == specifier


@pytest.mark.parametrize(
    "asked",
    [
        "=1|=2",
        "[version='>=1']",
        ">=1|<2",
        "latest",
        "=",
        "@ https://x",
        ">=https://x",
        "=" + "9" * 5000,
        ">=1" + ",<2" * 500,
    ],
)
def test_other_versions_of_conda_are_refused(asked: str) -> None:
    with pytest.raises(CondaVersionsError, match="not understood"):
        translate(asked)


@pytest.mark.parametrize(
    "text",
    [
        "dependencies: &a [*a]", "a: &a [x, x]\nb: [*a, *a]\ndependencies: []", "dependencies: " + "[" * 30_000, "- " * 30_000, "", "x", "- numpy",
        "dependencies: 3", "dependencies: {a: b}", "{[a]: b}", 'a: "\\UFFFFFFFF"', "%YAML " + "9" * 9000 + ".1\n---\na: b", "dependencies: [\x00]",
        "? " * 20_000, "{" * 60_000, "a: b\n---\nc: d\n", "dependencies:\n" + "  - six\n" * 6000,
    ],
)  # fmt: skip
def test_a_hostile_file_is_refused(text: str) -> None:
    found = read(text)
    assert not found.lines and len(found.refused) == 1


def test_tags_make_no_objects() -> None:
    found = read(
        "dependencies:\n  - !!python/object/apply:os.system ['touch /tmp/x']\n  - !!python/name:os.system six\n  - !!int 3\n"
    )
    assert found.lines == ("six",) or not found.lines
    assert found.refused


@pytest.mark.parametrize("part", ["  - npm:\n    - x\n", "  - pip: six\n", "  - pip:\n      six: 1\n"])
def test_other_parts_are_refused(part: str) -> None:
    found = read("dependencies:\n" + part)
    assert not found.lines and len(found.refused) == 1


@pytest.mark.parametrize(
    ("asked", "python"), [("python=3", ""), ("python", ""), ("python 3.11.4", "3.11"), ("python>=3.9,<3.10", "3.9")]
)
def test_python_is_a_version_only_if_one_is_pinned(asked: str, python: str) -> None:
    assert read(f"dependencies: ['{asked}']").python == python
