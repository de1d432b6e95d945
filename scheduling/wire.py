"""Snapshots and plans as JSON, for recorded cycles, replays and reports. Nothing is lost on the way there and back."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import isfinite
from operator import attrgetter
from typing import Any

from scheduling.types import Account, Curve, Estimate, Job, Limit, Node, NodeId, Plan, Reservation, Snapshot


def snapshot_to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Equal snapshots give equal JSON, but for the order within a policy's own ``state``: all else is sorted.

    By hand, field by field: ``asdict`` copies everything deeply, which takes ten times as long in each live turn.
    Most jobs can run on the same nodes: those are listed once under ``places``, and a job names its place by number.
    """
    places = {nodes: sorted(nodes) for nodes in {job.nodes for job in snapshot.jobs} if nodes is not None}
    numbers = {nodes: number for number, nodes in enumerate(sorted(places, key=places.__getitem__))}
    return {
        "now": snapshot.now,
        "nodes": [_plain(node) for node in snapshot.nodes],
        "places": [places[nodes] for nodes in numbers],
        "jobs": [_job_to_json(job, numbers) for job in snapshot.jobs],
        "limits": [{**_plain(limit), "jobs": sorted(limit.jobs)} for limit in snapshot.limits],
        "state": snapshot.state,
        "accounts": [{**_plain(account), "jobs": sorted(account.jobs)} for account in snapshot.accounts],
        "reservations": [{**_plain(each), "owners": sorted(each.owners)} for each in snapshot.reservations],
        "patience_seconds": snapshot.patience_seconds if isfinite(snapshot.patience_seconds) else None,
    }


_NAMES = {
    kind: [each.name for each in fields(kind)] for kind in (Account, Curve, Estimate, Job, Limit, Node, Reservation)
}
_VALUES = {kind: attrgetter(*names) for kind, names in _NAMES.items()}


def _plain(value: Any) -> dict[str, Any]:
    kind = type(value)
    return dict(zip(_NAMES[kind], _VALUES[kind](value), strict=True))


def _job_to_json(job: Job, places: Mapping[frozenset[NodeId], int]) -> dict[str, Any]:
    content = _plain(job)
    if job.nodes is not None:
        content["nodes"] = places[job.nodes]
    content["now_on"], content["base"] = dict(sorted(job.now_on.items())), dict(sorted(job.base.items()))
    for name in ("speed", "free_speed"):
        if curve := content[name]:
            content[name] = {**_plain(curve), "kinds": dict(sorted(curve.kinds.items()))}
    if job.work is not None:
        content["work"] = _plain(job.work)
    return content


def snapshot_from_json(content: Mapping[str, Any]) -> Snapshot:
    """Fields that a later version added have their defaults. Raises LookupError or TypeError for what is none."""
    places = [frozenset(nodes) for nodes in content.get("places", ())]
    return Snapshot(
        now=content["now"],
        patience_seconds=content.get("patience_seconds") or float("inf"),
        nodes=tuple(Node(**_known(Node, node)) for node in content["nodes"]),
        jobs=tuple(_job(job, places) for job in content["jobs"]),
        limits=tuple(Limit(**{**_known(Limit, row), "jobs": frozenset(row["jobs"])}) for row in content["limits"]),
        state=content["state"],
        accounts=tuple(
            Account(**{**_known(Account, row), "jobs": frozenset(row["jobs"]), "used": tuple(row["used"])})
            for row in content.get("accounts", ())
        ),
        reservations=tuple(
            Reservation(**{**_known(Reservation, row), "owners": frozenset(row["owners"])})
            for row in content.get("reservations", ())
        ),
    )


def plan_to_json(plan: Plan) -> dict[str, Any]:
    return {
        "target": {job: dict(where) for job, where in plan.target.items()},
        "reasons": dict(plan.reasons),
        "state": dict(plan.state),
        "batches": dict(plan.batches),
        "again_at": plan.again_at,
    }


def plan_from_json(content: Mapping[str, Any]) -> Plan:
    return Plan(**_known(Plan, content))


def _job(content: Mapping[str, Any], places: Sequence[frozenset[NodeId]]) -> Job:
    values = _known(Job, content)
    match values.get("nodes"):
        case int(number):
            values["nodes"] = places[number]
        case list(nodes):  # as they were written before there were places
            values["nodes"] = frozenset(nodes)
    for name in ("speed", "free_speed"):
        if curve := values.get(name):
            values[name] = Curve(
                **{**_known(Curve, curve), "speeds": tuple(curve["speeds"]), "batches": tuple(curve["batches"])}
            )
    if estimate := values.get("work"):
        values["work"] = Estimate(**_known(Estimate, estimate))
    return Job(**values)


def _known(kind: Any, content: Mapping[str, Any]) -> dict[str, Any]:
    names = {item.name for item in fields(kind)}
    return {name: value for name, value in content.items() if name in names}
