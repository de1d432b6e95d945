"""A policy as a filter: one snapshot in, one allocation out, for simulators and tools that are not ours.

They provide little information and apply an allocation at once. So a ``Filter`` remembers from one request to the next
what the portal would know (since when a job runs, how much it has done), learns the lengths of models whose jobs have
ended, and repeats the policy until its plan is stable before it answers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scheduling.renamed import renamed
from scheduling.simulate.settle import InvalidPlanError, settle
from scheduling.toolkit import estimates
from scheduling.types import Curve, Estimate, Job, JobId, Node, Placement, Policy, Snapshot

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"BadRequest": "BadRequestError"})

VERSION = 1
NEARLY_DONE = 0.05
"""A job that disappears with no more than this fraction left has ended; with more it was removed."""
MIN_FRACTION_DONE = 0.02
"""With less than this fraction done, jobs of the same model give a better estimate of the rest than the job itself."""
MAX_LENGTHS = 200
"""The number of latest lengths that are remembered for each model."""
MAX_GPUS = 1_000_000


class BadRequestError(ValueError):
    """The request is not valid; the message has the reason. It changes nothing."""


@dataclass(slots=True)
class RememberedJob:
    """What is known of a job beyond the current request."""

    asked_at: float
    served: float
    now_on: Placement
    first_started_at: float | None
    started_at: float | None
    since: float | None
    run_seconds: float = 0.0
    done: float = 0.0
    """Seconds of work on one GPU."""
    left: float | None = None
    """The remaining fraction of it, as last reported."""
    pace: float = 0.0
    """The fraction of it done per second, recently."""
    model: str = ""


@dataclass(slots=True)
class Filter:
    policy: Policy
    state: Mapping[str, Any] = field(default_factory=dict)
    jobs: dict[JobId, RememberedJob] = field(default_factory=dict)
    lengths: dict[str, list[float]] = field(default_factory=dict)
    """By model: the work of its jobs that ended, latest last."""
    now: float = -math.inf

    def answer(self, request: Any) -> dict[str, Any]:
        """Return ``{"alloc": {job: {node: gpus}}}``. Raises BadRequestError, or InvalidPlanError for a faulty policy."""
        now, nodes, rows = _parse_request(request)
        if now < self.now:
            raise BadRequestError(f"now must not go back: it was {self.now:g} and is {now:g}")
        memories = {row["id"]: self._update_memory(row, now) for row in rows}
        lengths = {model: list(known) for model, known in self.lengths.items()}
        for id in self.jobs.keys() - memories.keys():
            _learn_length(self.jobs[id], now, lengths)
        jobs = tuple(_job(row, memories[row["id"]], lengths) for row in rows)
        snapshot = _snapshot(now, nodes, jobs, self.state)
        plan, after = settle(self.policy, snapshot, movable=True)
        for job in after.jobs:
            memory = memories[job.id]
            if job.now_on != memory.now_on:
                memory.first_started_at, memory.started_at = job.first_started_at, job.started_at
                memory.since, memory.now_on = job.since, job.now_on
        self.now, self.state, self.jobs, self.lengths = now, plan.state, memories, lengths
        reply: dict[str, Any] = {"alloc": {job.id: dict(job.now_on) for job in after.jobs if job.now_on}}
        batches = {job: size for job, size in plan.batches.items() if job in reply["alloc"]}
        return {**reply, "batches": batches} if batches else reply

    def _update_memory(self, row: Mapping[str, Any], now: float) -> RememberedJob:
        """Return the updated memory of a job, as a new object, so that a request that fails leaves no trace."""
        here, left, served = row["now_on"], row["remaining_fraction"], row["served_gpu_s"]
        old = self.jobs.get(row["id"])
        gpus = sum(here.values())
        curve = _curve(row)
        if old is None:
            ran = served / (gpus or row["asked_gpus"])
            return RememberedJob(
                now, served, here,
                first_started_at=row["submitted"] if served or here else None,
                started_at=now - ran if here else None,
                since=now - ran if here else row["submitted"] if served else None,
                run_seconds=ran,
                done=ran * _speed(curve, gpus or row["asked_gpus"]),
                left=left, model=row["model"],
            )  # fmt: skip
        # Since the last request it held what we gave it then, or if that was not applied, what it reports now.
        ran = (served - old.served) / gpus if gpus and served > old.served else 0.0
        same = here == old.now_on
        passed = now - old.asked_at
        paced = old.left is not None and left is not None and passed > 0
        return RememberedJob(
            now, served, here,
            first_started_at=old.first_started_at if old.first_started_at is not None else now if here else None,
            started_at=(old.started_at if old.started_at is not None else now) if here else None,
            since=old.since if same else now,
            run_seconds=old.run_seconds + ran,
            done=old.done + ran * _speed(curve, gpus),
            left=left,
            pace=max(0.0, old.left - left) / passed if paced else old.pace,
            model=row["model"],
        )  # fmt: skip


def _learn_length(memory: RememberedJob, now: float, lengths: dict[str, list[float]]) -> None:
    """Learn from a job that has disappeared: if it has ended, its length is an example for its model."""
    left, gpus = memory.left, sum(memory.now_on.values())
    if left is not None and left > max(NEARLY_DONE, 1.5 * memory.pace * (now - memory.asked_at)):
        return
    if left is None and not gpus:
        return  # it left while it waited
    done = memory.done
    if left is not None and left < 1.0 and memory.done > 0:
        done = memory.done / (1.0 - left)
    elif gpus:
        done += (now - memory.asked_at) * gpus**estimates.DEFAULT_EXPONENT / 2  # it ended somewhere in between
    if done > 0:
        known = lengths.setdefault(memory.model, [])
        known.append(done)
        del known[:-MAX_LENGTHS]


def _remaining_work(memory: RememberedJob, lengths: Sequence[float]) -> Estimate | None:
    """Return the remaining work, in seconds on one GPU; None when it is unknown."""
    left = memory.left
    if left is not None and 1.0 - left >= MIN_FRACTION_DONE and memory.done > 0:
        return Estimate(memory.done * left / (1.0 - left), "measured", 0.1)
    # Of the jobs of its model, only those that took longer than this one has taken are examples of what remains.
    longer = [length for length in lengths if length > memory.done] if left is None else list(lengths)
    if not longer:
        return None
    mean = sum(longer) / len(longer)
    spread = math.sqrt(sum((length - mean) ** 2 for length in longer) / len(longer)) / mean
    rest = mean - memory.done if left is None else mean * left
    return Estimate(max(rest, 0.0), "history", max(0.1, round(spread, 3)))


def _job(row: Mapping[str, Any], memory: RememberedJob, lengths: Mapping[str, Sequence[float]]) -> Job:
    left = memory.left
    return Job(
        id=row["id"],
        owner=row["owner"],
        group=row["group"],
        priority=row["priority"],
        weight=row["weight"],
        submitted_at=row["submitted"],
        min_gpus=row["min_gpus"],
        max_gpus=row["max_gpus"],
        asked_gpus=row["asked_gpus"],
        elastic=row["min_gpus"] < row["max_gpus"],
        preemptible=True,
        now_on=memory.now_on,
        started_at=memory.started_at,
        first_started_at=memory.first_started_at,
        since=memory.since,
        run_seconds=memory.run_seconds,
        served_gpu_seconds=row["served_gpu_s"],
        restarts=row["restarts"],
        script=row["model"],
        batch=row["batch"],
        speed=_curve(row),
        work=_remaining_work(memory, lengths.get(row["model"], ())),
        progress=None if left is None else 1.0 - left,
    )


def _snapshot(
    now: float, nodes: Mapping[str, Mapping[str, Any]], jobs: tuple[Job, ...], state: Mapping[str, Any]
) -> Snapshot:
    held = dict.fromkeys(nodes, 0)
    for job in jobs:
        for node, gpus in job.now_on.items():
            if node not in held:
                raise BadRequestError(f"job {job.id} is on node {node}, which is not there")
            held[node] += gpus
    views = []
    for id, facts in nodes.items():
        if held[id] > facts["gpus"]:
            raise BadRequestError(f"node {id} has {facts['gpus']} GPUs, but jobs are on {held[id]} of it")
        views.append(Node(id, id, facts["gpus"], facts["gpus"] - held[id], kind=facts["kind"]))
    return Snapshot(now, tuple(views), jobs, state=state)


# --- reading


def _parse_request(request: Any) -> tuple[float, dict[str, dict[str, Any]], list[dict[str, Any]]]:
    asked = _require_object(request, "the snapshot")
    version = asked.get("v", VERSION)
    if version != VERSION:
        raise BadRequestError(f"this is version {VERSION}, not {version!r}")
    now = _require_number(asked, "now", "the snapshot")
    nodes: dict[str, dict[str, Any]] = {}
    for item in _require_list(asked, "nodes"):
        node = _require_object(item, "a node")
        id = _require_name(node, "a node")
        if id in nodes:
            raise BadRequestError(f"node {id} is there twice")
        nodes[id] = {"gpus": _require_count(node, "gpus", f"node {id}"), "kind": str(node.get("kind", ""))}
    rows: dict[str, dict[str, Any]] = {}
    for item in _require_list(asked, "jobs"):
        row = _parse_job(_require_object(item, "a job"))
        if row["id"] in rows:
            raise BadRequestError(f"job {row['id']} is there twice")
        rows[row["id"]] = row
    return now, nodes, list(rows.values())


def _parse_job(job: Mapping[str, Any]) -> dict[str, Any]:
    id = _require_name(job, "a job")
    who = f"job {id}"
    asked = _require_count(job, "asked_gpus", who, minimum=1)
    minimum, maximum = (
        _require_count(job, "min_gpus", who, asked, minimum=1),
        _require_count(job, "max_gpus", who, asked, minimum=1),
    )
    if minimum > maximum:
        raise BadRequestError(f"{who} has min_gpus above max_gpus")
    left = job.get("remaining_fraction")
    if left is not None:
        left = min(1.0, max(0.0, _require_number(job, "remaining_fraction", who)))
    speeds = job.get("speedup")
    if speeds is not None:
        if not isinstance(speeds, list) or not speeds:
            raise BadRequestError(f"{who}: speedup must be a list of numbers, or null")
        if any(not _is_number(value) or value < 0 for value in speeds) or not speeds[0] > 0:
            raise BadRequestError(f"{who}: speedup must be numbers of at least 0, the first above it")
    where = _require_object(job.get("now_on") or {}, f"now_on of {who}")
    now_on = {str(node): _require_count(where, node, f"now_on of {who}") for node in where}
    return {
        "id": id,
        "owner": str(job.get("owner") or id),  # without owners, each job has its own
        "group": str(job.get("group", "")),
        "priority": int(_require_number(job, "priority", who, 0)),
        "weight": _require_number(job, "weight", who, 1),
        "submitted": _require_number(job, "submitted", who),
        "asked_gpus": min(max(asked, minimum), maximum),
        "min_gpus": minimum,
        "max_gpus": maximum,
        "batch": int(_require_number(job, "batch", who, 0)),
        "model": str(job.get("model") or ""),
        "served_gpu_s": max(0.0, _require_number(job, "served_gpu_s", who, 0)),
        "restarts": _require_count(job, "restarts", who, 0),
        "remaining_fraction": left,
        "speedup": speeds,
        "now_on": {node: gpus for node, gpus in now_on.items() if gpus},
    }


def _require_object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadRequestError(f"{what} must be an object")
    return value


def _require_list(asked: Mapping[str, Any], name: str) -> list[Any]:
    value = asked.get(name)
    if not isinstance(value, list):
        raise BadRequestError(f"{name} must be a list")
    return value


def _require_name(item: Mapping[str, Any], what: str) -> str:
    value = item.get("id")
    if not isinstance(value, str | int) or value == "" or isinstance(value, bool):
        raise BadRequestError(f"{what} has no id")
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require_number(item: Mapping[str, Any], name: str, who: str, default: float | None = None) -> float:
    value = item.get(name)
    if value is None and default is not None:
        return float(default)
    if not _is_number(value):
        raise BadRequestError(f"{who}: {name} must be a number")
    return float(value)  # type: ignore[arg-type]


def _require_count(
    item: Mapping[str, Any], name: str, who: str, default: int | None = None, *, minimum: int = 0
) -> int:
    value = _require_number(item, name, who, default)
    if value != int(value) or not minimum <= value <= MAX_GPUS:
        raise BadRequestError(f"{who}: {name} must be a whole number of at least {minimum}")
    return int(value)


def _curve(row: Mapping[str, Any]) -> Curve | None:
    if row["speedup"] is None:
        return None
    one = row["speedup"][0]
    return Curve(tuple(value / one for value in row["speedup"]))


def _speed(curve: Curve | None, gpus: int) -> float:
    if not gpus:
        return 0.0
    return gpus**estimates.DEFAULT_EXPONENT if curve is None else curve.speeds[min(gpus, len(curve.speeds)) - 1]


__all__ = ["BadRequestError", "Filter", "InvalidPlanError"]
