"""What ranks may run: files, and modules where Python finds them."""

import pytest

from portal.projects.inspecting.entries import file_of, module_entries, module_of, python_arguments

PATHS = {
    "train.py",
    "pkg/__init__.py",
    "pkg/train.py",
    "pkg/__main__.py",
    "src/lib/__init__.py",
    "src/lib/run.py",
    "docs/a.py",
}


@pytest.mark.parametrize(
    ("entry", "file"),
    [
        ("train.py", "train.py"),
        ("nowhere.py", None),
        ("-m train", "train.py"),
        ("-m pkg.train", "pkg/train.py"),
        ("-m pkg", "pkg/__main__.py"),
        ("-m lib.run", "src/lib/run.py"),
        ("-m src.lib.run", "src/lib/run.py"),
        ("-m pkg.nowhere", None),
        ("-m lib", None),
    ],
)
def test_the_file_that_an_entry_runs(entry: str, file: str | None) -> None:
    assert file_of(entry, PATHS) == file


@pytest.mark.parametrize(
    "entry", ["-m", "-m ", "-m a b", "-m .a", "-m a..b", "-m a/b.py", "-ma", "-m a; ls", "-m 1a", "train.py"]
)
def test_anything_else_is_no_module(entry: str) -> None:
    assert module_of(entry) is None and python_arguments(entry) == (entry,)


def test_modules_of_packages_are_offered() -> None:
    assert module_entries(PATHS) == ["-m lib.run", "-m pkg", "-m pkg.train"]
