"""The dependencies in a pyproject.toml."""

import pytest

from portal.projects.package_lists.model import PackageList
from portal.projects.package_lists.poetry import VersionsError, translate
from portal.projects.package_lists.reading import read_list


def read(text: str | bytes) -> PackageList:
    content = text.encode() if isinstance(text, str) else text
    return read_list("pyproject.toml", {"pyproject.toml": content}.get)


def test_the_dependencies_of_a_project() -> None:
    found = read(
        '[project]\nname = "x"\nrequires-python = ">=3.11,<3.12"\ndependencies = [\n  "NumPy>=1.2", # yes\n'
        '  "rich; python_version < \'3.12\'",\n  "a @ git+https://x/y",\n  "b",\n]\n'
        '[project.optional-dependencies]\ndev = ["pytest"]\n[tool.uv.sources]\nB = { git = "https://x/b" }\n'
    )
    assert (found.kind, found.lines, found.python) == (
        "pyproject",
        ("numpy>=1.2", 'rich; python_version < "3.12"'),
        "3.11",
    )
    assert [(each.line, each.text) for each in found.refused] == [(7, "a @ git+https://x/y"), (8, "b")]
    assert "does not come from the package index" in found.refused[1].why
    assert ["dev" in each.text for each in found.notes] == [True]


def test_the_dependencies_of_poetry() -> None:
    found = read(
        '[tool.poetry.dependencies]\npython = "^3.10"\nnumpy = "^1.2.3"\npandas = "~2.0"\nrich = "*"\n'
        'a = { version = "^0.2.3", extras = ["x"], python = ">=3.8.1", markers = "os_name == \'posix\'" }\n'
        'b = { git = "https://x/b" }\nc = [{ version = "1" }]\nd = { version = "1.2", optional = true }\n'
        'e = "1.*"\nf = ">=1 || <3"\ng = "2.1"\nh = { path = "../h" }\ni = { version = "1", source = "lab" }\n'
    )
    assert found.lines == (
        "numpy<2,>=1.2.3", "pandas<2.1,>=2.0", "rich",
        'a[x]<0.3,>=0.2.3; os_name == "posix" and python_full_version >= "3.8.1"', "e==1.*", "g==2.1",
    )  # fmt: skip
    assert [each.line for each in found.refused] == [7, 8, 11, 13, 14]
    notes = {each.line: each.text for each in found.notes}
    assert "d is optional" in notes[9] and "Python <4,>=3.10" in notes[2]


@pytest.mark.parametrize(
    ("versions", "specifier"),
    [
        ("^1.2.3", "<2,>=1.2.3"), ("^1.2", "<2,>=1.2"), ("^1", "<2,>=1"), ("^0.2.3", "<0.3,>=0.2.3"), ("^0.0.3", "<0.0.4,>=0.0.3"),
        ("^0.0", "<0.1,>=0.0"), ("^0", "<1,>=0"), ("~1.2.3", "<1.3,>=1.2.3"), ("~1.2", "<1.3,>=1.2"), ("~1", "<2,>=1"), ("*", ""),
        ("1.2.3", "==1.2.3"), ("1.2.*", "==1.2.*"), (">=1,<2", "<2,>=1"), ("^1.2,!=1.4", "!=1.4,<2,>=1.2"), ("==1.0", "==1.0"),
    ],
)  # fmt: skip
def test_versions_of_poetry_are_translated(versions: str, specifier: str) -> None:
    assert translate(versions) == specifier


@pytest.mark.parametrize(
    "versions", ["^1 || ^2", "^1.2a", "latest", ">=1 <2", "^", "https://x", "9" * 5000, "^" + "9" * 100]
)
def test_other_versions_of_poetry_are_refused(versions: str) -> None:
    with pytest.raises(VersionsError, match="as pip does"):
        translate(versions)


def test_dependencies_that_are_computed_are_noted() -> None:
    found = read('[project]\nname = "x"\ndynamic = ["version", "dependencies"]\n')
    assert [(each.line, "computed" in each.text) for each in found.notes] == [(3, True)]


@pytest.mark.parametrize(
    "text", ["", "[tool.ruff]\nline-length = 100\n", '[project]\nname = "x"\nrequires-python = ">=3.8"\n']
)
def test_a_file_without_dependencies_is_no_list(text: str) -> None:
    assert read(text).is_empty


@pytest.mark.parametrize(
    "text",
    [
        "[project\n", "x = " + "[" * 50_000, "a" + ".a" * 20_000 + " = 1", "[" + "a." * 20_000 + "a]", "x = " + "9" * 10_000,
        '[project]\ndependencies = "numpy"\n', '"a" . ' + '"" . ' * 10_000 + "b = 1", b"\xff\xfe\x00",
    ],
)  # fmt: skip
def test_a_hostile_file_is_refused(text: str | bytes) -> None:
    found = read(text)
    assert not found.lines and (found.refused or found.is_empty)


def test_a_key_of_very_many_parts_is_refused_before_it_takes_long() -> None:
    """It is valid, and Python reads it in quadratic time."""
    for key in ("a" + ".a" * 20_000, "a" + ' . "x y"' * 8000, "a" + ".a" * 40):
        for text in (f"{key} = 1\n", f"[{key}]\n", f"[[{key}]]\n", f"a = {{{key} = 1}}\n"):
            assert "not valid TOML" in read(text).refused[0].why
    assert read("a.b.c.d = '" + ".a" * 20 + "'\n").is_empty


@pytest.mark.parametrize(
    ("tables", "refused"),
    [("project = 1", 0), ("[project]\ndependencies = [1, {a = 2}, ['six']]", 3), ("[tool]\npoetry = []", 0),
     ("[tool.poetry.dependencies]\na = 1\nb = {version = 3}\n'c d' = '1'\n", 3), ("[project]\nrequires-python = 3\ndependencies = ['six']", 0),
     ("[tool.uv]\nsources = 3\n[project]\ndependencies = ['six']\noptional-dependencies = 7\ndynamic = 3", 0)],
)  # fmt: skip
def test_tables_of_the_wrong_kind_do_no_harm(tables: str, refused: int) -> None:
    assert len(read(tables).refused) == refused


@pytest.mark.parametrize(
    ("asked", "python"),
    [("==3.11.*", "3.11"), ("==3.12.4", "3.12"), ("~=3.10.2", "3.10"), (">=3.9,<3.10", "3.9"), (">3.11.4,<3.11.6", "3.11"),
     (">=3.9", ""), ("<4", ""), (">=3.40", ""), ("==2.7", ""), ("!=3.9.*", ""), ("~=3.9", "")],
)  # fmt: skip
def test_python_is_a_version_only_if_one_is_pinned(asked: str, python: str) -> None:
    found = read(f'[project]\nrequires-python = "{asked}"\ndependencies = ["six"]\n')
    assert found.python == python
    assert bool(found.notes) != bool(python)
