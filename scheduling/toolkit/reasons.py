"""Why a job waits: a different message for each cause, from which ``portal/sentences/reasons.py`` makes the sentence.

Recorded cycles contain these messages, and a replay compares them: a changed one shows as a difference.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from scheduling import words
from scheduling.messages import Message, Text
from scheduling.renamed import renamed
from scheduling.toolkit import resources
from scheduling.toolkit.capacity import Capacity, Scope
from scheduling.types import Job, JobId, Limit, Snapshot

if not TYPE_CHECKING:
    __getattr__ = renamed(
        __name__,
        {
            "rough": "rounded_seconds",
            "gpus": "words.gpus",
            "jobs": "words.jobs_are",
            "hours": "words.duration",
            "promised": "Promised",
            "behind_saved": "BehindSaved",
        },
    )


@dataclass(frozen=True)
class Unexplained(Message):
    """Any reason, where no one reads it (``Snapshot.explain``)."""

    code: ClassVar[str] = "unexplained"


@dataclass(frozen=True)
class NoOpenNode(Message):
    code: ClassVar[str] = "no_open_node"


@dataclass(frozen=True)
class NoOpenNodeForIt(Message):
    """None of the nodes it can run on is open."""

    code: ClassVar[str] = "no_open_node_for_it"


@dataclass(frozen=True)
class TooLarge(Message):
    """It needs more GPUs than there are for it: on one node, or on several for a job that may spread."""

    code: ClassVar[str] = "too_large"
    needed: int
    largest: int
    spread: bool


@dataclass(frozen=True)
class AboveLimit(Message):
    """It needs more GPUs than its user or group may ever hold."""

    code: ClassVar[str] = "above_limit"
    needed: int
    limit: int
    name: str


@dataclass(frozen=True)
class LimitReached(Message):
    """The other jobs of its user or group hold too many GPUs; ``promised`` when some of those are not held yet."""

    code: ClassVar[str] = "limit_reached"
    needed: int
    limit: int
    name: str
    held: int
    promised: bool


@dataclass(frozen=True)
class NoneFree(Message):
    """All ``total`` GPUs that it could use are in use or, with ``kept``, kept for jobs ahead of it."""

    code: ClassVar[str] = "none_free"
    ahead: int
    total: int
    everywhere: bool
    """Whether it can run on all nodes."""
    kept: bool


@dataclass(frozen=True)
class TooFewFree(Message):
    """Fewer GPUs are free than it needs; with ``kept``, others are free, but kept for jobs ahead of it."""

    code: ClassVar[str] = "too_few_free"
    ahead: int
    needed: int
    free: int
    kept: bool


@dataclass(frozen=True)
class NotUnderThisPolicy(Message):
    """Enough GPUs are free, but the policy does not start it yet."""

    code: ClassVar[str] = "not_under_this_policy"
    ahead: int
    free: int
    kept: bool


@dataclass(frozen=True)
class TooScattered(Message):
    """Enough GPUs are free, but too few together on one node."""

    code: ClassVar[str] = "too_scattered"
    ahead: int
    needed: int
    largest: int
    node: str


@dataclass(frozen=True)
class TooMuchPerGpu(Message):
    """No nodes have so much memory, or so many processors, for each of the GPUs that it needs."""

    code: ClassVar[str] = "too_much_per_gpu"
    resource: str
    """One of ``resources.RESOURCES``."""
    needed: int
    """For each GPU: thousandths of a processor, or MiB."""
    largest: int
    """What it could have for each GPU on empty nodes; 0 when that would not help."""


@dataclass(frozen=True)
class ShortOfResource(Message):
    """Enough GPUs are free, but too little memory or too few processors beside them."""

    code: ClassVar[str] = "short_of_resource"
    ahead: int
    resource: str
    """One of ``resources.RESOURCES``."""
    gpus: int
    """The GPUs that it needs."""
    needed: int
    """For each of them: thousandths of a processor, or MiB."""
    node: str
    """The node with the most GPUs that it could take, which has ``free`` ones and ``left`` of the resource."""
    free: int
    left: int


@dataclass(frozen=True)
class InLine(Message):
    """The first job of the queue comes before, even if GPUs are free."""

    code: ClassVar[str] = "in_line"
    ahead: int
    first_needs: int


@dataclass(frozen=True)
class WouldHoldUp(Message):
    """It could delay the first of the queue, which others may overtake only without delaying it."""

    code: ClassVar[str] = "would_hold_up"
    ahead: int
    first_needs: int
    minutes: int | None
    """When the first one is expected to start; None when unknown."""


@dataclass(frozen=True)
class Outserved(Message):
    """The job was stopped, or waits, because it has had more GPU time than others."""

    code: ClassVar[str] = "outserved"
    reason: Message
    gpu_hours: float


@dataclass(frozen=True)
class InTurns(Message):
    """Jobs that can be stopped make room at the end of their time slice."""

    code: ClassVar[str] = "in_turns"
    reason: Message
    minutes: int


@dataclass(frozen=True)
class Promised(Message):
    """Other jobs are releasing GPUs for this job."""

    code: ClassVar[str] = "promised"
    count: int


@dataclass(frozen=True)
class Saving(Message):
    """The job holds the reservation of a backfilling policy: GPUs are kept for it as they become free."""

    code: ClassVar[str] = "saving"
    waited: int
    needed: int
    saved: int


@dataclass(frozen=True)
class BehindSaved(Message):
    """GPUs are free, but kept for the job that holds the reservation."""

    code: ClassVar[str] = "behind_saved"
    count: int


@dataclass(frozen=True)
class AccountHas(Message):
    """The GPUs that an account holds ``now``, that it held on average recently, and that it is entitled to."""

    code: ClassVar[str] = "account_has"
    name: str
    now: int
    recent: float
    share: float


@dataclass(frozen=True)
class BehindShare(Message):
    """Accounts that are further below their share go first."""

    code: ClassVar[str] = "behind_share"
    reason: Message
    account: AccountHas
    group: AccountHas | None


UNEXPLAINED = Unexplained()
AHEAD = re.compile(r"\b(\d+) jobs? (?:is|are) ahead of it\b")
"""The count in a sentence that a lab's own policy gives as a reason."""


def rounded_seconds(seconds: float) -> int:
    """Return a duration rounded as a sentence shows it, in seconds: to whole days, hours, minutes or seconds."""
    size = next((size for size in (86400, 3600, 60) if seconds >= 2 * size), 1)
    return round(seconds / size) * size


def ahead_of(reason: Message) -> int:
    """Return the number of jobs ahead in a reason, or 0."""
    if isinstance(reason, Text):
        match = AHEAD.search(reason.text)
        return int(match[1]) if match else 0
    if isinstance(inner := getattr(reason, "reason", None), Message):
        return ahead_of(inner)
    ahead = getattr(reason, "ahead", 0)
    return ahead if isinstance(ahead, int) else 0


def with_ahead(reason: Message, ahead: int) -> Message:
    """Return the reason with another number of jobs ahead. It must have one."""
    if isinstance(reason, Text):
        return Text(AHEAD.sub(f"{words.jobs_are(ahead)} ahead of it", reason.text, count=1))
    if isinstance(inner := getattr(reason, "reason", None), Message):
        return replace(reason, reason=with_ahead(inner, ahead))  # type: ignore[type-var]
    return replace(reason, ahead=ahead)  # type: ignore[type-var]


def impossible(job: Job, capacity: Capacity) -> Message | None:
    """Return why the job could not start even if it were alone on the open nodes; None when it could.

    Such a job holds no other job up, under any policy.
    """
    if job.blocked:
        return job.blocked
    if not capacity.nodes:
        return NoOpenNode()
    scope = capacity.scope(job)
    if not scope.nodes:
        return NoOpenNodeForIt()
    maximum = scope.max_gpus(job)
    if job.min_gpus > maximum:
        return _too_much_per_gpu(job, scope) or TooLarge(job.min_gpus, maximum, job.spread)
    for limit, _ in capacity.limits_of(job):
        if job.min_gpus > limit.max_gpus:
            return AboveLimit(job.min_gpus, limit.max_gpus, limit.name)
    return None


def limited(job: Job, capacity: Capacity) -> Message | None:
    """Return which limit keeps the job from starting now, or None. Only jobs of its owner or group can change that."""
    for limit, room in capacity.limits_of(job):
        if job.min_gpus > room:
            return _limit_reached(job, limit, room, promised=capacity.promises(limit))
    return None


def limit_reached_by(
    job: Job, snapshot: Snapshot, sizes: Mapping[JobId, int], held: Mapping[JobId, int]
) -> Message | None:
    """Return which limit leaves too few GPUs for the job when others get these ``sizes``, or None.

    ``held`` has the GPUs that jobs hold now.
    """
    kept = any(node.kept for node in snapshot.nodes)  # for growth that is delayed
    for limit in snapshot.limits:
        if job.id in limit.jobs:
            given = sum(max(sizes.get(other, 0), held.get(other, 0)) for other in limit.jobs)
            room = limit.max_gpus - limit.leaving - limit.elsewhere - given
            if job.min_gpus > room:
                more = kept or given > sum(held.get(other, 0) for other in limit.jobs)
                return _limit_reached(job, limit, room, promised=more)
    return None


def _limit_reached(job: Job, limit: Limit, room: int, *, promised: bool) -> LimitReached:
    return LimitReached(job.min_gpus, limit.max_gpus, limit.name, limit.max_gpus - room, promised)


def _too_much_per_gpu(job: Job, scope: Scope) -> Message | None:
    """Return that the job asks for too much of a resource per GPU; None when its GPUs alone are too many."""
    rooms = [resources.Room(node, node.total) for node in scope.nodes]
    if not job.has_demands or not resources.fits(job, rooms, resources.Demand()):
        return None
    asked = {index: own for index, own in enumerate(resources.demand_of(job)) if own is not None}
    largest = {index: resources.largest_demand(job, rooms, index) for index in asked}
    index = next((index for index in asked if largest[index]), min(asked))
    return TooMuchPerGpu(resources.RESOURCES[index], asked[index], largest[index])


def _short_of_resource(job: Job, capacity: Capacity, ahead: int) -> Message | None:
    """Return that processors or memory keep a job waiting for which enough GPUs are free; None when they suffice."""
    levels, allowed = capacity.levels(job), capacity.scope(job).allowed
    possible = [node for node in capacity.nodes_of(job) if capacity.free[node.id] > 0]
    enough = levels.sum_of(allowed) if job.spread else max((levels[node.id] for node in possible), default=0)
    if capacity.resources is None or enough >= job.min_gpus or not possible:
        return None
    node = min(possible, key=lambda node: (-levels[node.id], -capacity.free[node.id], node.id))
    room = resources.Room(node, capacity.free[node.id], capacity.resources.extra[node.id])
    index = resources.scarcer(job, room)
    own, share = resources.demand_of(job)[index], resources.share_of(node)[index]
    return ShortOfResource(
        ahead=ahead,
        resource=resources.RESOURCES[index],
        gpus=job.min_gpus,
        needed=share if own is None else own,
        node=node.name,
        free=room.gpus,
        left=room.left(index),
    )


def shortage(job: Job, capacity: Capacity, ahead: int) -> Message:
    """Return that too few GPUs are free, or too few of them together, or too little of what goes with them."""
    scope = capacity.scope(job)
    left, node = capacity.free.sum_of(scope.allowed), next(capacity.free.fullest(scope.allowed), None)
    largest, name = (capacity.free[node], capacity.nodes[node].name) if node is not None else (0, "")
    if left <= 0:
        return NoneFree(ahead, scope.total, scope.allowed is None, _has_kept_gpus(job, capacity))
    if left < job.min_gpus:
        return TooFewFree(ahead, job.min_gpus, left, _has_kept_gpus(job, capacity))
    if job.spread or largest >= job.min_gpus:
        if short := _short_of_resource(job, capacity, ahead):
            return short
        return NotUnderThisPolicy(ahead, left, _has_kept_gpus(job, capacity))
    return TooScattered(ahead, job.min_gpus, largest, name)


def _has_kept_gpus(job: Job, capacity: Capacity) -> bool:
    """Whether free GPUs of nodes that it can run on are kept for jobs ahead of it, in its layer or a higher one."""
    allowed = capacity.scope(job).allowed
    return any(allowed is None or node in allowed for node in capacity.kept)


def in_line(first: Job, ahead: int) -> Message:
    return InLine(ahead, first.min_gpus)


def would_hold_up(first: Job, ahead: int, seconds: float | None) -> Message:
    return WouldHoldUp(ahead, first.min_gpus, None if seconds is None else max(1, round(seconds / 60)))


def outserved(reason: Message, job: Job) -> Message:
    return Outserved(reason, round(job.served_gpu_seconds / 3600, 1))


def in_turns(reason: Message, seconds: float) -> Message:
    return InTurns(reason, max(1, round(seconds / 60)))


def awaiting(job: Job, capacity: Capacity, missing: int) -> Message:
    """Explain that a job will start on GPUs of which ``missing`` are not free yet.

    Another job may have started on some of those, so the reason counts only GPUs that are being released.
    """
    coming = min(missing, capacity.coming_for(job))
    return Promised(coming) if coming else shortage(job, capacity, 0)


def saving(job: Job, now: float, have: int, count: int) -> Message:
    waited = rounded_seconds(max(0.0, now - job.submitted_at - job.run_seconds))
    return Saving(waited, count, have)
