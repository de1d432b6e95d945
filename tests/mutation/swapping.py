"""Puts a mutant into a process that has the module loaded already, instead of starting a new Python process for each.

Functions get new code objects, wherever they were imported to and however they are decorated; a constant is computed
again and replaced in every module that has it.
"""

import ast
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType


class CannotSwapError(Exception):
    """The change is of a kind that only a new process shows; the message names the kind."""


def swap(path: Path, source: str) -> None:
    """Make a loaded module behave as ``source``, its text with the mutant. Raises CannotSwapError."""
    old = path.read_text()
    before, after = (compile(text, str(path), "exec", dont_inherit=True) for text in (old, source))
    changed = {_key(one): other for one, other in _changed_codes(before, after)}
    found = 0
    gc.unfreeze()  # portal.asgi hides from the collector what was loaded before it
    # Not isinstance: it would ask Django's lazy objects for their class, and so make them.
    for function in [each for each in gc.get_objects() if type(each) is FunctionType]:
        code = changed.get(_key(function.__code__))
        if code is not None and function.__code__.co_filename == str(path):
            if len(code.co_freevars) != len(function.__code__.co_freevars):
                raise CannotSwapError(f"{function.__qualname__} uses other variables of its surroundings now")
            function.__code__ = code
            found += 1
    for name, statement in _changed_constants(old, source):
        _replace(path, name, statement)
        found += 1
    if not found:
        raise CannotSwapError(f"{path} is not loaded, or nothing that can be changed in a running process differs")


def _key(code: CodeType) -> tuple[str, int, bytes, tuple[str, ...]]:
    """What a function's code is known by. Code that has run is no longer equal to what it was compiled to."""
    return code.co_qualname, code.co_firstlineno, code.co_code, code.co_names


def _changed_codes(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield what differs within a piece of code: functions, and those within them."""
    before, after = ([each for each in code.co_consts if isinstance(each, CodeType)] for code in (old, new))
    if len(before) != len(after):
        raise CannotSwapError(f"{old.co_qualname} has more or fewer functions within it now")
    for one, other in zip(before, after, strict=True):
        if one != other:
            yield one, other
            yield from _changed_codes(one, other)


def _changed_constants(old: str, new: str) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the assignments of a module that differ, by the name that they give a value to."""
    for before, after in zip(ast.parse(old).body, ast.parse(new).body, strict=True):
        if isinstance(after, ast.Assign | ast.AnnAssign) and ast.dump(before) != ast.dump(after):
            target = after.targets[0] if isinstance(after, ast.Assign) else after.target
            if not isinstance(target, ast.Name):
                raise CannotSwapError(f"line {after.lineno} gives a value to more than a name")
            yield target.id, after


def _replace(path: Path, name: str, statement: ast.stmt) -> None:
    loaded = [each for each in list(sys.modules.values()) if getattr(each, "__file__", None) == str(path)]
    if len(loaded) != 1:
        raise CannotSwapError(f"{path} is loaded {len(loaded)} times")
    module = loaded[0]
    value = getattr(module, name)
    namespace = dict(vars(module))
    exec(compile(ast.Module([statement], []), str(path), "exec"), namespace)  # noqa: S102 - the tree's own text
    for each in list(sys.modules.values()):
        if getattr(each, "__dict__", {}).get(name) is value:
            setattr(each, name, namespace[name])
