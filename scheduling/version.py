"""The version of the code that decides: a hash of the sources of a policy, of ``decide`` and of all that both import."""

import hashlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec

DIGITS = 12
DECIDE_MODULE = "scheduling.decide"
IMPORT = re.compile(r"^from (scheduling(?:\.\w+)*) import (\([^)]*\)|[^\n#]*)", re.MULTILINE)


@cache
def version_of(policy: type) -> str:
    """Return the version of a policy. Equal versions decide the same; an edit of the policy or of a helper changes it."""
    seen: dict[str, str] = {}
    todo = [policy.__module__, DECIDE_MODULE]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen[name] = _source_of(name)
        todo += _imported_modules(seen[name])
    whole = "\0".join(f"{name}\0{seen[name]}" for name in sorted(seen))
    return hashlib.sha256(whole.encode()).hexdigest()[:DIGITS]


def _source_of(name: str) -> str:
    """Return the source of a module; empty for a policy without a file, as in a test."""
    try:
        return inspect.getsource(import_module(name))
    except OSError:
        return ""


def _imported_modules(source: str) -> Iterator[str]:
    """Yield the modules of this package that a source imports, without ``__init__`` files, which decide nothing.

    It searches the text: concurrent calls of ``ast.parse`` fail in Python 3.11, and two schedulers may run as threads.
    """
    for found in IMPORT.finditer(source):
        package, names = found[1], found[2].strip("()")
        for name in (package, *(f"{package}.{each.split()[0]}" for each in names.split(",") if each.strip())):
            if name != "scheduling" and _is_module(name):
                yield name


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False  # a name inside a module
