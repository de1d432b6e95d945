"""What the ranks of a job run: a file of the code, ``train.py``, or a module of it, ``-m package.train``.

Python finds modules at the top of the upload and in ``src`` (runners/launch/shim); a file finds those beside it first.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

MODULE = re.compile(r"-m ([^\W\d]\w*(?:\.[^\W\d]\w*)*)")
SOURCE_FOLDER = "src"


def module_of(entry: str) -> str | None:
    """Return the module that an entry names; None for a file."""
    match = MODULE.fullmatch(entry)
    return match[1] if match else None


def python_arguments(entry: str) -> tuple[str, ...]:
    """Return what follows ``python`` to run an entry."""
    module = module_of(entry)
    return ("-m", module) if module else (entry,)


def files_of(module: str) -> Iterator[str]:
    """Yield the files of an upload that ``-m module`` may run, in the order in which Python looks for them."""
    path = module.replace(".", "/")
    for folder in ("", f"{SOURCE_FOLDER}/"):
        yield f"{folder}{path}/__main__.py"
        yield f"{folder}{path}.py"


def file_of(entry: str, paths: Collection[str]) -> str | None:
    """Return the file that an entry runs; None when the upload does not have it."""
    module = module_of(entry)
    return next((path for path in (files_of(module) if module else [entry]) if path in paths), None)


def as_module(path: str) -> str | None:
    """Return the module that a file is, such as ``package.train``; None for one without a package, or an impossible name."""
    parts = list(PurePosixPath(path).with_suffix("").parts)
    if parts[:1] == [SOURCE_FOLDER]:
        parts = parts[1:]
    if parts[-1:] == ["__main__"]:
        parts = parts[:-1]
    return ".".join(parts) if "/" in path and parts and all(part.isidentifier() for part in parts) else None


def module_entries(paths: Iterable[str]) -> list[str]:
    """Return the entries that run the modules in packages of an upload, by name."""
    known = set(paths)
    folders = {path.rpartition("/")[0] for path in known if path.endswith("/__init__.py")}
    modules = (
        as_module(path)
        for path in known
        if path.endswith(".py") and path.rpartition("/")[0] in folders and not path.endswith("/__init__.py")
    )
    return [f"-m {module}" for module in sorted(filter(None, modules))]


def entry_of(guess: Mapping[str, Any]) -> str:
    """Return the entry that inspection guessed (``CodeVersion.guess``): a module where the file would not run by itself."""
    module = guess.get("module")
    return f"-m {module}" if module else str(guess.get("entry") or "")
