"""Turning a policy until it changes nothing more, as if GPUs asked back were free at once.

For worlds in which a whole allocation is applied in one stroke: rounds of 60 seconds, and ``manage.py decide``.
"""

from collections.abc import Callable
from functools import partial

from scheduling.check import violations
from scheduling.decide import decide
from scheduling.toolkit.projected_state import project
from scheduling.types import Plan, Policy, Snapshot

MAX_TURNS = 30
"""The laws hold every policy to come to rest within so many."""


class InvalidPlanError(Exception):  # noqa: N818
    """The policy made a plan that breaks a rule: a mistake of the policy, never of its user."""


def settle(
    policy: Policy, snapshot: Snapshot, *, ask: Callable[[Snapshot], Plan] | None = None, movable: bool = False
) -> tuple[Plan, Snapshot]:
    """The last plan, and the world at rest that it describes.

    ``ask`` replaces ``decide``, to measure or record it. With ``movable`` no job has a base: each may change all
    its GPUs at once. Raises ``Refused`` for a plan that breaks a rule.
    """
    ask = ask or partial(decide, policy)
    at_first = {job.id: job for job in snapshot.jobs}
    for _ in range(MAX_TURNS):
        plan = ask(snapshot)
        if wrong := violations(snapshot, plan):
            raise InvalidPlanError(" ".join(wrong[:10]))
        then = project(snapshot, plan, at_first, movable=movable)
        if then.jobs == snapshot.jobs:
            return plan, then
        snapshot = then
    return plan, snapshot
