"""Chooses the files of an upload that are lists of packages, and those that lists may include."""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from .model import Kind

MAX_LISTS = 10
MAX_READ = 100
"""Files whose text is kept while an upload is read."""

_REQUIREMENTS = re.compile(r"requirements(?:[-_][^/]*)?\.txt", re.IGNORECASE)
_CONDA = re.compile(r"environment\.ya?ml", re.IGNORECASE)
_INCLUDED = re.compile(r"require|constraint|depend|package|reqs|deps", re.IGNORECASE)
_FOREIGN = frozenset({"node_modules", "site-packages", "dist-packages", "venv", "env", "__pycache__"})
_ORDER: tuple[Kind, ...] = ("requirements", "pyproject", "conda")


def kind_of(path: str) -> Kind | None:
    """Return which kind of list a file is by its path; None for another file, and for those of installed packages."""
    parts = PurePosixPath(path).parts
    if not parts or any(part in _FOREIGN or part.startswith(".") for part in parts[:-1]):
        return None
    name = parts[-1]
    in_folder = parts[-2:-1] == ("requirements",) and name.endswith(".txt")
    if in_folder or _REQUIREMENTS.fullmatch(name):
        return "requirements"
    if name == "pyproject.toml":
        return "pyproject"
    return "conda" if _CONDA.fullmatch(name) else None


def find_lists(paths: Iterable[str]) -> list[str]:
    """Return the lists of an upload that are offered, nearest to the top first, plain names before others."""
    found = [(path, kind) for path in paths if (kind := kind_of(path))]
    found.sort(key=lambda each: _rank(*each))
    return [path for path, _ in found[:MAX_LISTS]]


def may_be_included(path: str) -> bool:
    """Return whether a list may include this file by ``-r`` or ``-c``, as far as its path shows."""
    pure = PurePosixPath(path)
    return pure.suffix in (".txt", ".in") and (len(pure.parts) <= 2 or bool(_INCLUDED.search(path)))


def _rank(path: str, kind: Kind) -> tuple[int, bool, int, str]:
    pure = PurePosixPath(path)
    is_plain = pure.name.lower() in ("requirements.txt", "pyproject.toml", "environment.yml", "environment.yaml")
    return len(pure.parts), not is_plain, _ORDER.index(kind), path
