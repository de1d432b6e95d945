"""Snapshots and plans as JSON, for recorded cycles, replays and reports. A round trip loses nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import orjson

from scheduling.messages import message_from
from scheduling.types import (
    Account,
    Curve,
    Estimate,
    GpuRequest,
    Job,
    Limit,
    Node,
    NodeId,
    Plan,
    Reservation,
    Snapshot,
)

NUMPY_OPTION = orjson.OPT_SERIALIZE_NUMPY
"""The state of a policy may contain NumPy numbers."""


def snapshot_to_text(snapshot: Snapshot) -> str:
    """Return a snapshot as JSON. Equal snapshots give equal text, except for the order within the policy's ``state``.

    Most jobs can run on the same nodes: each set of nodes is listed once under ``places``, and a job has its index.
    An infinite patience is null. ``explain`` is left out: a replay always shows why jobs waited.
    """
    places = {nodes: sorted(nodes) for nodes in {job.nodes for job in snapshot.jobs} if nodes is not None}
    numbers = {nodes: number for number, nodes in enumerate(sorted(places, key=places.__getitem__))}
    jobs = [replace(job, blocked=job.blocked.data()) if job.blocked else job for job in snapshot.jobs]  # type: ignore[arg-type]
    content = {
        "now": snapshot.now,
        "nodes": snapshot.nodes,
        "places": [places[nodes] for nodes in numbers],
        "jobs": orjson.Fragment(_to_json_bytes(jobs, numbers.__getitem__)),
        "limits": snapshot.limits,
        "state": orjson.Fragment(orjson.dumps(snapshot.state, option=NUMPY_OPTION)),
        "accounts": snapshot.accounts,
        "reservations": snapshot.reservations,
        "patience_seconds": snapshot.patience_seconds,
        "damping_seconds": snapshot.damping_seconds,
    }
    return _to_json_bytes(content, sorted).decode()


def _to_json_bytes(content: Any, of_set: Callable[[frozenset[str]], Any]) -> bytes:
    return orjson.dumps(content, of_set, orjson.OPT_SORT_KEYS | NUMPY_OPTION)


def snapshot_from_json(content: Mapping[str, Any]) -> Snapshot:
    """Return the snapshot; fields that a later version added have their defaults.

    Raises LookupError or TypeError for content that is not a snapshot.
    """
    places = [frozenset(nodes) for nodes in content.get("places", ())]
    return Snapshot(
        now=content["now"],
        patience_seconds=content.get("patience_seconds") or float("inf"),
        damping_seconds=content.get("damping_seconds", 0.0),
        nodes=tuple(Node(**_known_fields(Node, node)) for node in content["nodes"]),
        jobs=tuple(_job_from_json(job, places) for job in content["jobs"]),
        limits=tuple(
            Limit(**{**_known_fields(Limit, row), "jobs": frozenset(row["jobs"])}) for row in content["limits"]
        ),
        state=content["state"],
        accounts=tuple(
            Account(**{**_known_fields(Account, row), "jobs": frozenset(row["jobs"]), "used": tuple(row["used"])})
            for row in content.get("accounts", ())
        ),
        reservations=tuple(
            Reservation(**{**_known_fields(Reservation, row), "owners": frozenset(row["owners"])})
            for row in content.get("reservations", ())
        ),
    )


def plan_to_json(plan: Plan) -> dict[str, Any]:
    return {
        "target": {job: dict(where) for job, where in plan.target.items()},
        "reasons": {job: reason.data() for job, reason in plan.reasons.items()},
        "state": dict(plan.state),
        "batches": dict(plan.batches),
        "again_at": plan.again_at,
    }


def plan_from_json(content: Mapping[str, Any]) -> Plan:
    values = _known_fields(Plan, content)
    reasons = {job: message_from(reason) for job, reason in values.pop("reasons", {}).items()}
    return Plan(**values, reasons=reasons)


def _job_from_json(content: Mapping[str, Any], places: Sequence[frozenset[NodeId]]) -> Job:
    values = _known_fields(Job, content)
    values["blocked"] = message_from(blocked) if (blocked := values.get("blocked")) else None
    match values.get("nodes"):
        case int(number):
            values["nodes"] = places[number]
        case list(nodes):  # the format before ``places`` existed
            values["nodes"] = frozenset(nodes)
    for name in ("speed", "free_speed"):
        if curve := values.get(name):
            values[name] = Curve(
                **{**_known_fields(Curve, curve), "speeds": tuple(curve["speeds"]), "batches": tuple(curve["batches"])}
            )
    if estimate := values.get("work"):
        values["work"] = Estimate(**_known_fields(Estimate, estimate))
    if request := values.get("gpu_request"):
        values["gpu_request"] = GpuRequest(**{**_known_fields(GpuRequest, request), "kinds": tuple(request["kinds"])})
    return Job(**values)


def _known_fields(kind: Any, content: Mapping[str, Any]) -> dict[str, Any]:
    names = {item.name for item in fields(kind)}
    return {name: value for name, value in content.items() if name in names}
