"""Repeats a recorded decision: with the same policy, to check that it decides the same, or with another one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from scheduling import wire
from scheduling.changes import KINDS, Kind, kind_of
from scheduling.check import violations
from scheduling.decide import decide
from scheduling.failures import PlanRefused, PolicyFailed
from scheduling.messages import Message, Text
from scheduling.toolkit.placement import without_empty_nodes
from scheduling.types import Job, JobId, Plan, Policy, Snapshot


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between two plans for one job. ``what`` is a sentence."""

    job: JobId
    was: Kind
    would: Kind
    what: str


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """A repeated decision. ``plan`` is None when the policy failed or its plan breaks a rule; ``wrong`` has the reason."""

    plan: Plan | None
    wrong: Message | None
    differences: tuple[Difference, ...]
    state_differs: bool
    """Whether the new plan has another state. The states of two different policies are not compared."""

    @property
    def same(self) -> bool:
        return self.plan is not None and not self.differences and not self.state_differs


def decide_again(
    policy: Policy, snapshot: Snapshot, plan: Plan, *, state: Mapping[str, Any] | None = None
) -> ReplayOutcome:
    """Decide on ``snapshot`` with ``policy``, and compare the result with ``plan``, job by job.

    Pass ``state`` for another policy than the one that made ``plan``: it replaces the state of the snapshot, and only
    GPUs and batch sizes are compared, since each policy words its reasons differently.
    """
    other = state is not None
    if state is not None:
        snapshot = replace(snapshot, state=state)
    try:
        # Through JSON, like the recorded plan: tuples of a state become lists, and its keys become strings.
        new = wire.plan_from_json(json.loads(json.dumps(wire.plan_to_json(decide(policy, snapshot)))))
    except Exception as error:  # any failure of the policy is a result
        return ReplayOutcome(None, PolicyFailed.from_error(error), (), False)
    if wrong := violations(snapshot, new):
        return ReplayOutcome(None, PlanRefused.from_violations(wrong[:3]), (), False)
    found = differences(snapshot, plan, new, compare_reasons=not other)
    return ReplayOutcome(new, None, found, not other and new.state != plan.state)


def differences(snapshot: Snapshot, one: Plan, other: Plan, *, compare_reasons: bool = True) -> tuple[Difference, ...]:
    """Return the differences between two plans by job, the most disruptive first."""
    names = {node.id: node.name for node in snapshot.nodes}
    found = []
    for job in snapshot.jobs:
        if texts := _describe_differences(job, one, other, names, compare_reasons):
            was, would = (kind_of(job, without_empty_nodes(plan.target.get(job.id, {}))) for plan in (one, other))
            found.append((KINDS.index(would), job.queue_key, Difference(job.id, was, would, "; ".join(texts))))
    return tuple(one for *_, one in sorted(found, key=lambda one: one[:2]))


def _describe_differences(
    job: Job, one: Plan, other: Plan, names: Mapping[str, str], compare_reasons: bool
) -> list[str]:
    pairs: list[tuple[str, Any, Any]] = [
        ("", _describe_gpus(one, job, names), _describe_gpus(other, job, names)),
        ("batch ", one.batches.get(job.id), other.batches.get(job.id)),
    ]
    before, after = one.reasons.get(job.id), other.reasons.get(job.id)
    recorded_as_text = isinstance(before, Text) and after is not None and not isinstance(after, Text)
    if compare_reasons and not recorded_as_text:  # by an earlier release
        pairs.append(("", before, after))
    return [
        f"{what}{_format_value(before)} -> {_format_value(after)}" for what, before, after in pairs if before != after
    ]


def _describe_gpus(plan: Plan, job: Job, names: Mapping[str, str]) -> str:
    target = without_empty_nodes(plan.target.get(job.id, {}))
    return " + ".join(f"{gpus} on {names.get(node, node)}" for node, gpus in sorted(target.items())) or "no GPUs"


def _format_value(value: Any) -> str:
    if isinstance(value, Text):
        return value.text
    if isinstance(value, Message):
        parameters = ", ".join(f"{name}={shown!r}" for name, shown in value.data().items() if name != "code")
        return f"{value.code}({parameters})"
    return "none" if value is None else str(value)
