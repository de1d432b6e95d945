"""Finds the files that a Python needs: its virtual environment, the Python it was made from, and the links between them."""

import json
import os
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

QUERY = """
import json, sys, sysconfig
paths, variables = sysconfig.get_paths(), sysconfig.get_config_vars()
print(json.dumps({
    "prefixes": [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix],
    "libraries": [paths["stdlib"], paths["platstdlib"]],
    "shared": [variables.get("LIBDIR") or "", variables.get("INSTSONAME") or ""],
}))
"""
QUERY_SECONDS = 30
SYSTEM = Path("/usr")
"""Always visible in the sandbox."""


@dataclass(frozen=True, slots=True)
class InterpreterPaths:
    folders: tuple[Path, ...] = ()
    """Also single files, where the Python has no folder of its own."""
    links: tuple[tuple[Path, str], ...] = ()
    """Symbolic links outside these folders, with their targets."""


def required_paths(python: str, hidden: Collection[Path]) -> InterpreterPaths:
    """Return the files that ``python`` needs. ``hidden``: folders of which nothing else may be shown.

    Raises OSError or ValueError when the interpreter cannot be run.
    """
    answer = _query(python, Path(python).stat().st_mtime_ns)
    folders: set[Path] = set()
    broad = False
    for prefix in map(Path, answer["prefixes"]):
        if any(each.is_relative_to(prefix) for each in hidden):
            broad = True  # for example a Python that was installed into the home itself
        else:
            folders |= {prefix, prefix.resolve()}
    if broad:
        folders |= {Path(each) for each in answer["libraries"]}
        shared = Path(*answer["shared"])
        folders |= {shared} if shared.is_file() else set()
    links, program = [], Path(python)
    while True:
        outside = not _is_within(program, folders)
        if not program.is_symlink():
            break
        target = str(program.readlink())
        if outside:
            links.append((program, target))
        program = Path(os.path.normpath(program.parent / target))
    if outside:
        folders.add(program)
    kept = [path for path in folders if not path.is_relative_to(SYSTEM) and path.exists()]
    return InterpreterPaths(
        tuple(sorted(path for path in kept if not any(other in path.parents for other in kept))),
        tuple(link for link in links if not link[0].is_relative_to(SYSTEM)),
    )


def _is_within(path: Path, folders: Collection[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in (SYSTEM, *folders))


@cache
def _query(python: str, _modified_ns: int) -> dict[str, Any]:
    command = [python, "-I", "-c", QUERY]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{python} does not answer within {QUERY_SECONDS} s") from error
    if run.returncode:
        raise ValueError(f"{python} does not run: {run.stderr.strip()[-300:]}")
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer
