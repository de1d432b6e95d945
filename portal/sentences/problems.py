"""The problems that an agent has found on its machine, for people: what is unfit, and what would fix it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portal.sentences import sentence_of
from runners.messages import message_from
from runners.messages.problems import FORMER_FIX, FullDisk, Problem, SmallDisk

__all__ = ["DISK_PROBLEMS", "FORMER_FIX", "ShownProblem", "problem_of"]

DISK_PROBLEMS = (SmallDisk.code, FullDisk.code)


@dataclass(frozen=True, slots=True)
class ShownProblem:
    code: str
    """Empty for one that an agent of the previous release reported."""
    text: str
    fix: str
    blocking: bool
    """Whether the node accepts no jobs until it is fixed."""


def problem_of(stored: Mapping[str, Any]) -> ShownProblem:
    """Return a problem as ``Node.problems`` has it: data, or the texts that an agent of the previous release sent.

    A problem that is not known here, of a later release, is shown as its code and parameters.
    """
    blocking = bool(stored.get("blocking"))
    if "code" not in stored:
        return ShownProblem("", str(stored.get("text") or ""), str(stored.get("fix") or ""), blocking)
    content = {name: value for name, value in stored.items() if name != "blocking"}
    try:
        problem = message_from(content)
    except TypeError:
        return ShownProblem(stored["code"], sentence_of(content), "", blocking)
    return ShownProblem(stored["code"], problem.text, problem.fix if isinstance(problem, Problem) else "", blocking)
