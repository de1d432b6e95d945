"""What would help a waiting job: changes of what it asks for, each tried in the present snapshot.

A change is tried as it would be made: the job is gone, and in its place in the queue there is another with a new number
and nothing to its name. "Starts now" means that the policy in force gives it GPUs in this very turn; "sooner", that it
does in nearly every future (``futures``) by a clear margin, the same lengths drawn for all other jobs.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from portal.cluster.models import Environment, Node, NodeEnvironment
from portal.forecast import words
from portal.forecast.futures import HORIZON_SECONDS, NEVER, live_on
from portal.jobs.models import Job
from portal.projects import inspection
from portal.scheduler.snapshot import with_at_most
from scheduling import types
from scheduling.check import violations
from scheduling.decide import decide
from scheduling.simulate import InvalidPlanError
from scheduling.toolkit import estimates
from scheduling.types import Policy, Snapshot

TIME_LIMITS = (8 * 3600, 4 * 3600, 2 * 3600, 3600, 1800, 900)
ROOM = 1.2
"""A shorter limit is proposed only where the job is expected to need clearly less."""
MOST_SHOWN = 3
DRAWS = 5
SECONDS = 2.5
FUTURE_SECONDS = 0.5
"""For one change; and so much for the job as it is."""
SOONER_SECONDS = 120.0
SOONER_PART = 0.7
"""Clearly sooner: by two minutes at least, and after at most this part of the wait."""
NEARLY_ALL = 0.8
ALL_SIZES_UP_TO = 16
ELASTIC, OPPORTUNISTIC, RESUMABLE = "elastic", "opportunistic", "resumable"


@dataclass(frozen=True, slots=True)
class Change:
    key: str
    """How forms and scripts name it: ``gpus-2``."""
    said: str
    """A clause: ``with 2 GPUs instead of 4``."""
    spec: Mapping[str, Any]
    """What differs in the ``Submission``."""
    job: types.Job
    """The changed job, as the policy would see it."""
    condition: str = ""
    """What only its owner knows."""

    @property
    def kind(self) -> str:
        return self.key.partition("-")[0]


@dataclass(frozen=True, slots=True)
class Help:
    """A change that helps."""

    change: Change
    low: float = 0.0
    high: float = 0.0
    """Seconds until it starts; both 0: the next turn starts it."""
    now_low: float = NEVER
    now_high: float = NEVER
    """The same for the job as it is."""

    @property
    def starts_now(self) -> bool:
        return self.high == 0.0

    @property
    def sentence(self) -> str:
        said = f"{self.change.said[0].upper()}{self.change.said[1:]}"
        condition = f" {self.change.condition}" if self.change.condition else ""
        if self.starts_now:
            return f"{said} it starts now.{condition}"
        instead = ""
        if self.now_high != NEVER:
            instead = f" instead of {words.span(self.now_low, self.now_high)}"
        return f"{said} it probably starts {words.span(self.low, self.high)}{instead}.{condition}"


# --- which changes there are -------------------------------------------------------------------------------------


def candidates(row: Job, job: types.Job, snapshot: Snapshot) -> list[Change]:
    """``job`` is how the snapshot sees ``row``. Of one kind, the smallest change comes first."""
    fresh = replace(job, id=_new_id(snapshot))
    return [
        *_fewer_gpus(fresh),
        *_elastic(row, fresh),
        *_environments(row, fresh, snapshot),
        *_shorter(row, fresh),
        *_willing(row, fresh),
    ]


def _new_id(snapshot: Snapshot) -> str:
    return str(max(int(job.id) for job in snapshot.jobs) + 1)


def _fewer_gpus(job: types.Job) -> Iterator[Change]:
    for gpus in _sizes(job.min_gpus):
        if job.min_gpus == job.max_gpus:
            said = f"with {_gpus(gpus)} instead of {job.min_gpus}"
            yield Change(f"gpus-{gpus}", said, {"min_gpus": gpus, "max_gpus": gpus}, with_at_most(job, gpus))
        else:
            said = f"with {_gpus(gpus)} as its least instead of {job.min_gpus}"
            yield Change(f"gpus-{gpus}", said, {"min_gpus": gpus}, replace(job, min_gpus=gpus))


def _sizes(gpus: int) -> Iterator[int]:
    """Fewer, largest first; of many only about every eighth part."""
    size = gpus - 1
    while size >= 1:
        yield size
        size -= 1 if size <= ALL_SIZES_UP_TO else max(1, size // 8)


def _elastic(row: Job, job: types.Job) -> Iterator[Change]:
    """Only for code that was found to use ``hvd.elastic``: other code fails when its GPUs change."""
    if row.launcher == Job.Launcher.HOROVOD and not row.elastic and row.max_gpus > 1 and row.code.guess.get("elastic"):
        said = f"as an elastic job with 1 to {_gpus(row.max_gpus)}"
        yield Change(ELASTIC, said, {"elastic": True, "min_gpus": 1}, replace(job, elastic=True, min_gpus=1))


def _environments(row: Job, job: types.Job, snapshot: Snapshot) -> Iterator[Change]:
    """Others that have all its code imports, and are ready where its own is not."""
    opened = {node.id for node in snapshot.nodes if node.open}
    here = job.nodes if job.nodes is not None else opened
    ready: dict[int, set[str]] = {}
    rows = NodeEnvironment.objects.filter(state=NodeEnvironment.State.READY, node__in=[int(id) for id in opened])
    for key, node in rows.values_list("environment", "node"):
        ready.setdefault(key, set()).add(str(node))
    others = Environment.objects.filter(retired=False, pk__in=ready).exclude(pk=row.environment_id)
    for environment in others.order_by("position", "key"):
        nodes = ready[environment.pk]
        if nodes <= here or inspection.missing_modules(row.code.guess, environment.packages):
            continue
        more = len(nodes - here)
        where = f"which is ready on {more} {'other ' if here else ''}node{'s' * (more != 1)}"
        changed = replace(job, nodes=frozenset(nodes), blocked="", spread=_may_spread(row, nodes))
        said = f"in the environment {environment.title}, {where},"
        yield Change(f"environment-{environment.key}", said, {"environment": environment}, changed)


def _may_spread(row: Job, nodes: set[str]) -> bool:
    if row.launcher == Job.Launcher.COMMAND:
        return False
    facts = Node.objects.filter(pk__in=[int(node) for node in nodes]).values_list("facts", flat=True)
    return all(each.get("ring_address") for each in facts)


def _shorter(row: Job, job: types.Job) -> Iterator[Change]:
    expected = None if job.work is None else estimates.remaining_seconds(job, job.asked)
    for seconds in TIME_LIMITS:
        if seconds >= row.time_limit_seconds or (expected is not None and seconds < ROOM * expected):
            continue
        said = f"with at most {words.length(seconds)} instead of {words.length(row.time_limit_seconds)}"
        changed = replace(job, longest_seconds=float(seconds))
        condition = "" if expected is not None else "It is stopped after that."
        yield Change(f"time-{seconds}", said, {"time_limit_seconds": seconds}, changed, condition)


def _willing(row: Job, job: types.Job) -> Iterator[Change]:
    if not row.resumable:
        condition = "Only if its code goes on from /checkpoints after a stop."
        changed = replace(job, preemptible=True)
        yield Change(RESUMABLE, "as a job that can go on after a stop", {"resumable": True}, changed, condition)
    if not row.opportunistic and row.tier != Job.Tier.PREMIUM:
        condition = "It is the first to go when others want them."
        changed = replace(job, opportunistic=True, preemptible=True)
        said = "on GPUs that nobody else wants"
        yield Change(OPPORTUNISTIC, said, {"opportunistic": True}, changed, condition)


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


# --- trying them -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    helps: tuple[Help, ...] = ()
    tried: tuple[str, ...] = ()
    """Kinds of changes that there are for this job."""
    about_to_start: bool = False


def what_helps(
    policy: Policy, snapshot: Snapshot, job: types.Job, changes: Sequence[Change], *, seconds: float = SECONDS
) -> Answer:
    """At most three, one of a kind; those that start it now first. As many as there is time to try."""
    deadline = time.perf_counter() + seconds
    tried = tuple(dict.fromkeys(change.kind for change in changes))
    if starts_now(policy, snapshot, job.id):
        return Answer(about_to_start=True)

    def helps(change: Change) -> bool:
        return starts_now(policy, with_change(snapshot, job, change), change.job.id)

    found: dict[str, Help] = {}
    sizes = [change for change in changes if change.kind == "gpus"]
    if best := _first_that(helps, sizes, deadline):
        found[best.kind] = Help(best)
    for change in changes:
        if len(found) == MOST_SHOWN or time.perf_counter() > deadline:
            break
        if change not in sizes and change.kind not in found and helps(change):
            found[change.kind] = Help(change)
    rest = [change for change in _worth_simulating(changes) if change.kind not in found]
    if rest and len(found) < MOST_SHOWN and time.perf_counter() < deadline:
        _simulate(policy, snapshot, job, rest, found, deadline)
    return Answer(tuple(found.values()), tried)


def _first_that(helps: Callable[[Change], bool], sizes: Sequence[Change], deadline: float) -> Change | None:
    """By halving: where a size helps, smaller ones nearly always do. What is found has been tried."""
    if not sizes or not helps(sizes[-1]):
        return None
    first, last = 0, len(sizes) - 1
    while first < last and time.perf_counter() < deadline:
        middle = (first + last) // 2
        if helps(sizes[middle]):
            last = middle
        else:
            first = middle + 1
    return sizes[last]


def with_change(snapshot: Snapshot, job: types.Job, change: Change) -> Snapshot:
    """The same world with the changed job in its place."""
    old, new = job.id, change.job.id

    def renamed(ids: frozenset[str]) -> frozenset[str]:
        return (ids - {old}) | {new} if old in ids else ids

    return replace(
        snapshot,
        jobs=(*(each for each in snapshot.jobs if each.id != old), change.job),
        limits=tuple(replace(limit, jobs=renamed(limit.jobs)) for limit in snapshot.limits),
        accounts=tuple(replace(account, jobs=renamed(account.jobs)) for account in snapshot.accounts),
    )


def starts_now(policy: Policy, snapshot: Snapshot, job: str) -> bool:
    plan = decide(policy, snapshot)
    return any(plan.target.get(job, {}).values()) and not violations(snapshot, plan)


def _worth_simulating(changes: Sequence[Change]) -> list[Change]:
    """Sizes by halves and every other kind whole: each takes several futures."""
    sizes = [change for change in changes if change.kind == "gpus"]
    first = sizes[0].job.min_gpus + 1 if sizes else 0
    halves = {first >> shift for shift in range(1, first.bit_length())}
    return [change for change in changes if change.kind != "gpus" or change.job.min_gpus in halves]


def _simulate(
    policy: Policy,
    snapshot: Snapshot,
    job: types.Job,
    changes: Sequence[Change],
    found: dict[str, Help],
    deadline: float,
) -> None:
    """Adds those that start it clearly sooner. What lies beyond the horizon counts as starting there."""

    def starts(world: Snapshot, id: str, horizon: float) -> tuple[tuple[float, ...], float]:
        futures = live_on(policy, world, [id], draws=DRAWS, least_draws=DRAWS, horizon=horizon, seconds=FUTURE_SECONDS)
        return tuple(at - snapshot.now for at in futures.starts[id]), futures.until - snapshot.now

    try:
        as_is, reached = starts(snapshot, job.id, HORIZON_SECONDS)
        bounded = tuple(min(at, reached) for at in as_is)
        if bounded[-1] < SOONER_SECONDS:
            return
        for change in changes:
            if len(found) == MOST_SHOWN or time.perf_counter() > deadline:
                return
            if change.kind in found:
                continue
            changed, _ = starts(with_change(snapshot, job, change), change.job.id, bounded[-1])
            if clearly_sooner(changed, bounded):
                found[change.kind] = Help(change, changed[0], changed[-1], as_is[0], as_is[-1])
    except InvalidPlanError:
        return


def clearly_sooner(changed: Sequence[float], as_is: Sequence[float]) -> bool:
    """Both sorted, of equally many futures."""
    if changed[-1] == NEVER:
        return False
    better = sum(
        after + SOONER_SECONDS <= before and after <= SOONER_PART * before
        for after, before in zip(changed, as_is, strict=True)
    )
    return better >= NEARLY_ALL * len(as_is)
