"""Replay of recorded scheduling cycles: by the policy that was in force, or by another one."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from portal.scheduler.models import Cycle
from portal.scheduler.recording import read_recordings
from scheduling import registry
from scheduling.replay import ReplayOutcome, decide_again
from scheduling.types import Policy
from scheduling.version import version_of


@dataclass(frozen=True, slots=True)
class ReplayedCycle:
    """The replay of one cycle. ``outcome`` is None when it cannot be compared; ``why_not`` has the reason then."""

    cycle: Cycle
    outcome: ReplayOutcome | None
    why_not: str = ""
    edited: bool = False
    """The policy's code has changed since the cycle."""


@dataclass
class Summary:
    """The result of a replay."""

    cycles: int = 0
    same: int = 0
    edited: int = 0
    why_not: Counter[str] = field(default_factory=Counter)
    jobs: Counter[str] = field(default_factory=Counter)
    """By job, in how many cycles the decision about it differs."""
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(What happened to a job, what would have happened), with the number of jobs in all cycles where these differ."""

    @property
    def compared(self) -> int:
        return self.cycles - sum(self.why_not.values())

    @property
    def fidelity(self) -> float:
        """The share of the compared cycles that were decided equally; 1 when there were none."""
        return self.same / self.compared if self.compared else 1.0

    def add(self, one: ReplayedCycle) -> None:
        self.cycles += 1
        self.edited += one.edited
        if one.outcome is None:
            self.why_not[one.why_not] += 1
            return
        self.same += one.outcome.same
        self.jobs.update({each.job: 1 for each in one.outcome.differences})
        self.outcomes.update((each.was, each.would) for each in one.outcome.differences if each.was != each.would)


NO_PLAN = "no plan could be applied then"
POLICY_GONE = "its policy or its parameters are no longer in the code"


def replay(since: datetime | None = None) -> Iterator[ReplayedCycle]:
    """Decide every recorded cycle again, with the policy, parameters and state of that time."""
    policies: dict[int, Policy | None] = {}
    for one in read_recordings(since):
        config = one.cycle.config
        if one.plan is None or config is None:
            yield ReplayedCycle(one.cycle, None, NO_PLAN)
            continue
        if config.pk not in policies:
            policies[config.pk] = _build_policy(config.policy, config.params)
        policy = policies[config.pk]
        if policy is None:
            yield ReplayedCycle(one.cycle, None, POLICY_GONE)
            continue
        edited = one.cycle.version != version_of(type(policy))
        yield ReplayedCycle(one.cycle, decide_again(policy, one.snapshot, one.plan), edited=edited)


def replay_as(policy: Policy, since: datetime | None = None) -> Iterator[ReplayedCycle]:
    """Decide every recorded cycle by ``policy`` on the same snapshot, with its own state from cycle to cycle.

    The snapshots are those that the policy in force led to; the simulator shows what another one would have made of
    a month.
    """
    memory: Mapping[str, Any] = {}
    for one in read_recordings(since):
        if one.plan is None:
            yield ReplayedCycle(one.cycle, None, NO_PLAN)
            continue
        found = decide_again(policy, one.snapshot, one.plan, state=memory)
        memory = found.plan.state if found.plan else {}
        yield ReplayedCycle(one.cycle, found)


def _build_policy(key: str, params: Mapping[str, Any]) -> Policy | None:
    try:
        return registry.build(key, params)
    except ValueError:
        return None
