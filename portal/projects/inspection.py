"""Inspects a code version before it runs: how to start it, and what looks wrong."""

import hashlib
import json
import logging
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from django.core.cache import cache

from portal import sandbox
from portal.projects import store
from portal.projects.models import CodeVersion
from portal.projects.package_lists.model import PackageList, from_json

MISSING = "missing-module"
MISSING_IN_FUNCTION = "missing-in-function"

LIST_LIMITS = sandbox.Limits(15, 512 * 1024 * 1024, 1024 * 1024, threading.BoundedSemaphore(2), wait_seconds=5)
"""For reading package lists again, while a person waits for a page."""
LISTS_CACHED_SECONDS = 24 * 3600
RETRY_SECONDS = 300

logger = logging.getLogger(__name__)

UNREADABLE = {
    "code": "unreadable",
    "path": "",
    "line": 0,
    "text": "This code could not be inspected within the time limit. Choose the entry file yourself.",
}


def inspect(sha256: str) -> dict[str, Any]:
    """Return the guess that is stored with a code version (``CodeVersion.guess``). It never refuses an upload."""
    with store.path_of(sha256).open("rb") as tar:
        try:
            guess: dict[str, Any] = sandbox.run("projects.inspecting.program", [], tar)
        except sandbox.NoAnswerError:
            return {
                "entry": "",
                "candidates": [],
                "launcher": "command",
                "elastic": False,
                "imports": {},
                "requirements": [],
                "warnings": [UNREADABLE],
            }
    return guess


def package_lists(code: CodeVersion, allowed: Sequence[str] = ()) -> list[PackageList]:
    """Return the package lists of a code version, nearest to the top first.

    They are stored with the version, without addresses. They are read again, in a process with limits, from versions of
    earlier releases, which have none stored, and where ``allowed``, the addresses that an admin has allowed now, may accept a
    line that was refused. The result is kept in the cache. Where reading gives no answer, the stored lists are returned.
    """
    stored = code.guess.get("package_lists")
    lists = [from_json(each) for each in stored or ()]
    if stored is None or (allowed and any("://" in line.text for found in lists for line in found.refused)):
        read = _read_lists(code, tuple(sorted(allowed)))
        return lists if read is None else [from_json(each) for each in read]
    return lists


def _read_lists(code: CodeVersion, allowed: tuple[str, ...]) -> list[dict[str, Any]] | None:
    """Read the lists of a version again; None where that gave no answer, now or some minutes ago."""
    digest = hashlib.sha256(json.dumps([code.sha256, allowed]).encode()).hexdigest()
    key = f"package-lists:{digest}"
    kept = cache.get(key)
    if kept is not None:
        return kept["lists"]  # type: ignore[no-any-return]
    lists = None
    try:
        with store.path_of(code.sha256).open("rb") as tar:
            lists = sandbox.run("projects.package_lists.program", allowed, tar, limits=LIST_LIMITS)
    except (sandbox.NoAnswerError, FileNotFoundError) as error:
        logger.warning("the package lists of %s could not be read: %s", code, error)
    cache.set(key, {"lists": lists}, RETRY_SECONDS if lists is None else LISTS_CACHED_SECONDS)
    return lists


def missing_modules(guess: dict[str, Any], packages: Iterable[str]) -> list[dict[str, Any]]:
    """Return warnings for imports that are not among the modules of an environment, each with the name of its ``module``."""
    offered = {name.split(".")[0].lower() for name in packages}
    in_functions = set(guess.get("in_functions", ()))
    return [
        _missing_in_function(module, path, line) if module in in_functions else _missing(module, path, line)
        for module, (path, line) in sorted(guess.get("imports", {}).items())
        if module.lower() not in offered
    ]


def _missing(module: str, path: str, line: int) -> dict[str, Any]:
    text = f"“{module}” is not in this environment."
    return {"code": MISSING, "module": module, "path": path, "line": line, "text": text}


def _missing_in_function(module: str, path: str, line: int) -> dict[str, Any]:
    text = f"“{module}” is not in this environment. It is imported only inside a function, so the job fails only if that function runs."
    return {"code": MISSING_IN_FUNCTION, "module": module, "path": path, "line": line, "text": text}
