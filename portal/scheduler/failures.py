"""Why a scheduling cycle made no plan, as data for ``Cycle.error``; ``portal/sentences/failures.py`` has the sentences."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from portal.sentences import sentence_of
from scheduling.messages import Message


@dataclass(frozen=True)
class CycleFailed(Message):
    """The scheduler itself has a bug."""

    code: ClassVar[str] = "cycle_failed"
    error: str
    """The exception, quoted."""


@dataclass(frozen=True)
class PolicyTooSlow(Message):
    code: ClassVar[str] = "policy_too_slow"
    seconds: float


@dataclass(frozen=True)
class PolicyStillBusy(Message):
    code: ClassVar[str] = "policy_still_busy"


@dataclass(frozen=True)
class UnknownPolicy(Message):
    """The policy in force is no longer in the code."""

    code: ClassVar[str] = "unknown_policy"
    policy: str
    policies: list[str]


@dataclass(frozen=True)
class ParametersRefused(Message):
    """The parameters in force no longer fit their policy."""

    code: ClassVar[str] = "parameters_refused"
    error: str
    """What ``scheduling.params`` refused, or the policy itself, quoted."""


def violation_sentences(violations: Iterable[Message]) -> str:
    """Return the sentences about the rules that a plan breaks."""
    return " ".join(map(sentence_of, violations))
