"""Repeats a policy until its plan is stable, as if GPUs asked back were free at once.

For simulators that apply a whole allocation at once: rounds of 60 seconds, and ``manage.py decide``.
"""

from collections.abc import Callable, Iterable
from functools import partial

from scheduling.check import violations
from scheduling.decide import decide
from scheduling.failures import MAX_VIOLATIONS
from scheduling.messages import Message
from scheduling.toolkit.projected_state import project
from scheduling.types import Plan, Policy, Snapshot

MAX_CYCLES = 30
"""The property tests require that the plan of every policy is stable within this many cycles."""


class InvalidPlanError(Exception):
    """The plan of a policy breaks a rule: a mistake of the policy, never of its user."""

    def __init__(self, violations: Iterable[Message]) -> None:
        self.violations = tuple(violations)[:MAX_VIOLATIONS]
        super().__init__(self.violations)

    def __str__(self) -> str:
        return "; ".join(map(str, self.violations))


def settle(
    policy: Policy, snapshot: Snapshot, *, ask: Callable[[Snapshot], Plan] | None = None, movable: bool = False
) -> tuple[Plan, Snapshot]:
    """Return the last plan, and the stable snapshot after it.

    ``ask`` replaces ``decide``, to measure or record it. With ``movable`` no job has a base: each may change all
    its GPUs at once. Raises InvalidPlanError for a plan that breaks a rule.
    """
    ask = ask or partial(decide, policy)
    at_first = {job.id: job for job in snapshot.jobs}
    for _ in range(MAX_CYCLES):
        plan = ask(snapshot)
        if wrong := violations(snapshot, plan):
            raise InvalidPlanError(wrong)
        then = project(snapshot, plan, at_first, movable=movable)
        if then.jobs == snapshot.jobs:
            return plan, then
        snapshot = then
    return plan, snapshot
