"""Snapshots and plans as JSON, for recorded cycles, replays and reports. Nothing is lost on the way there and back."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from scheduling.types import Account, Curve, Estimate, Job, Limit, Node, Plan, Reservation, Snapshot


def snapshot_to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Equal snapshots give equal JSON: sets are sorted."""
    content = asdict(snapshot)
    for job in content["jobs"]:
        job["nodes"] = None if job["nodes"] is None else sorted(job["nodes"])
    for limited in (*content["limits"], *content["accounts"]):
        limited["jobs"] = sorted(limited["jobs"])
    for reservation in content["reservations"]:
        reservation["owners"] = sorted(reservation["owners"])
    return content


def snapshot_from_json(content: Mapping[str, Any]) -> Snapshot:
    """Fields that a later version added have their defaults. Raises KeyError or TypeError for what is no snapshot."""
    return Snapshot(
        now=content["now"],
        nodes=tuple(Node(**_known(Node, node)) for node in content["nodes"]),
        jobs=tuple(_job(job) for job in content["jobs"]),
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
    return asdict(plan)


def plan_from_json(content: Mapping[str, Any]) -> Plan:
    return Plan(**_known(Plan, content))


def _job(content: Mapping[str, Any]) -> Job:
    values = _known(Job, content)
    values["nodes"] = None if values.get("nodes") is None else frozenset(values["nodes"])
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
