"""Inspects a code version before it runs: how to start it, and what looks wrong."""

from collections.abc import Iterable
from typing import Any

from portal import sandbox
from portal.projects import store

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


def missing_modules(guess: dict[str, Any], packages: Iterable[str]) -> list[dict[str, Any]]:
    """Return warnings for imports that are not among the modules of an environment."""
    offered = {name.split(".")[0].lower() for name in packages}
    return [
        {
            "code": "missing-module",
            "path": path,
            "line": line,
            "text": f"“{module}” is not in this environment. Choose another, or ask an admin to add it.",
        }
        for module, (path, line) in sorted(guess.get("imports", {}).items())
        if module.lower() not in offered
    ]
