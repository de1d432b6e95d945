"""Changes that would start a waiting job sooner, each tried in the present snapshot.

A change is tried as it would be made: the job is gone, and in its place in the queue is another one with a new number
and no past. "Starts now" means that the policy in force gives it GPUs in this scheduling cycle; "sooner", that it starts
earlier by a clear margin in nearly every simulated future (``futures``), with the same lengths drawn for all other jobs.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from portal.cluster.models import Node
from portal.cluster.pools import node_of
from portal.environments.models import Environment, NodeEnvironment
from portal.forecast import messages
from portal.forecast.futures import HORIZON_SECONDS, NEVER, simulate_futures
from portal.jobs.models import Job
from portal.jobs.spec import limits_of
from portal.projects import inspection
from portal.scheduler.availability import NoSuchGpus
from portal.scheduler.snapshot import with_max_gpus
from scheduling import types
from scheduling.check import violations
from scheduling.decide import decide
from scheduling.gpu_requests import accepts
from scheduling.messages import Message
from scheduling.simulate import InvalidPlanError
from scheduling.toolkit import estimates, resources
from scheduling.types import Policy, Snapshot

TIME_LIMITS = (8 * 3600, 4 * 3600, 2 * 3600, 3600, 1800, 900)
LENGTH_MARGIN = 1.2
"""A shorter limit is proposed only if it is at least this factor above the expected length."""
MAX_SHOWN = 3
DRAWS = 5
SECONDS = 2.5
FUTURE_SECONDS = 0.5
"""Time for the simulation of one change, and of the job as it is."""
SOONER_SECONDS = 120.0
SOONER_FACTOR = 0.7
"""A start is clearly sooner if it is at least two minutes earlier and after at most this part of the wait ..."""
MIN_SOONER_SHARE = 0.8
"""... in at least this part of the futures."""
ALL_SIZES_UP_TO = 16
DEMANDS = ("cpus_per_gpu", "memory_mib_per_gpu")
"""Fields of a job, in the order of ``resources.RESOURCES``."""
FIELD_UNITS, DEMAND_UNITS = (1000, 1), (1000, 256)
"""How much the fields count in, and the steps in which less is proposed: whole processors, and quarters of a GiB."""
ELASTIC, OPPORTUNISTIC, RESUMABLE = "elastic", "opportunistic", "resumable"


@dataclass(frozen=True, slots=True)
class ProposedChange:
    """A change of what a job asks for."""

    key: str
    """Its name in forms and scripts: ``gpus-2``."""
    message: Message
    spec: Mapping[str, Any]
    """The fields of the ``Submission`` that differ, with their values."""
    job: types.Job
    """The changed job, as the policy would see it."""

    @property
    def kind(self) -> str:
        return self.key.partition("-")[0]


@dataclass(frozen=True, slots=True)
class HelpfulChange:
    """A change that helps."""

    change: ProposedChange
    low: float = 0.0
    high: float = 0.0
    """Seconds until the changed job starts; both are 0 when the next scheduling cycle starts it."""
    sooner: tuple[float, float] | None = None
    """The least and the most seconds that it saves; None where the job perhaps does not start as it is."""

    @property
    def starts_now(self) -> bool:
        return self.high == 0.0

    def message(self, *, lengths_known: bool) -> Message:
        """Return the advice; without figures where the lengths of other jobs are not known."""
        change = self.change.message
        if self.starts_now:
            return messages.ChangeStartsNow(change)
        if not lengths_known:
            return messages.ChangeStartsSooner(change)
        if self.sooner is None:
            return messages.ChangeStartsWithin(change, self.low, self.high)
        return messages.ChangeSavesTime(change, *self.sooner)


# --- possible changes --------------------------------------------------------------------------------------------


def possible_changes(row: Job, job: types.Job, snapshot: Snapshot) -> list[ProposedChange]:
    """Return the changes that are possible for a job; ``job`` is ``row`` in the snapshot.

    Of one kind, the smallest change comes first.
    """
    fresh = replace(job, id=_new_id(snapshot))
    return [
        *_fewer_gpus(fresh),
        *_less_per_gpu(fresh, snapshot),
        *_other_gpus(fresh, snapshot),
        *_elastic_variant(row, fresh),
        *_other_environments(row, fresh, snapshot),
        *_shorter_time_limits(row, fresh),
        *_preemptible_variants(row, fresh),
    ]


def _new_id(snapshot: Snapshot) -> str:
    return str(max(int(job.id) for job in snapshot.jobs) + 1)


def _fewer_gpus(job: types.Job) -> Iterator[ProposedChange]:
    for gpus in _smaller_sizes(job.min_gpus):
        if job.min_gpus == job.max_gpus:
            fewer = messages.FewerGpus(gpus, job.min_gpus)
            yield ProposedChange(f"gpus-{gpus}", fewer, {"min_gpus": gpus, "max_gpus": gpus}, with_max_gpus(job, gpus))
        else:
            smaller = messages.SmallerMinimum(gpus, job.min_gpus)
            yield ProposedChange(f"gpus-{gpus}", smaller, {"min_gpus": gpus}, replace(job, min_gpus=gpus))


def _less_per_gpu(job: types.Job, snapshot: Snapshot) -> Iterator[ProposedChange]:
    """Yield the most memory, and the most processors, with which it would fit beside the jobs that run now."""
    usable = [node for node in _open_nodes(job, snapshot) if accepts(job, node)]
    rooms = [resources.Room(node, node.free, resources.extra_of(node)) for node in usable]
    for index, (name, field, unit) in enumerate(zip(resources.RESOURCES, DEMANDS, DEMAND_UNITS, strict=True)):
        asked = resources.demand_of(job)[index]
        if asked is None or not resources.matter(snapshot):
            continue
        largest = resources.largest_demand(job, rooms, index) // unit * unit
        value, (lowest, _) = largest // FIELD_UNITS[index], limits_of(field)
        if lowest <= value and largest < asked:
            changed = resources.with_demand(job, index, largest)
            yield ProposedChange(f"{name}-{value}", messages.LessPerGpu(name, largest, asked), {field: value}, changed)


def _other_gpus(job: types.Job, snapshot: Snapshot) -> Iterator[ProposedChange]:
    """Yield less memory, other models and different models, each with GPUs that the lab has in addition."""
    request = job.gpu_request
    if request == types.ANY_GPU:
        return
    reachable = _open_nodes(job, snapshot)
    job = replace(job, blocked=None if isinstance(job.blocked, NoSuchGpus) else job.blocked)
    if request.same_kind and len({node.kind for node in reachable if accepts(job, node)}) > 1:
        changed = replace(job, gpu_request=replace(request, same_kind=False))
        yield ProposedChange("kinds-mixed", messages.DifferentModels(), {"same_gpu_model": False}, changed)
    if request.kinds:
        changed = replace(job, gpu_request=replace(request, kinds=()))
        others = sorted({node.kind for node in reachable if accepts(changed, node)} - set(request.kinds))
        if others:
            yield ProposedChange("models-any", messages.OtherModels(others), {"gpu_models": ()}, changed)
    smaller = sorted({node.gpu_memory_mib for node in reachable if 0 < node.gpu_memory_mib < request.memory_mib})
    for memory in reversed(smaller):
        changed = replace(job, gpu_request=replace(request, memory_mib=memory))
        less = messages.LessGpuMemory(memory, request.memory_mib)
        yield ProposedChange(f"gpumemory-{memory}", less, {"gpu_memory_mib": memory}, changed)


def _open_nodes(job: types.Job, snapshot: Snapshot) -> list[types.Node]:
    """Return the open nodes on which the job can run, whichever GPUs it accepts."""
    return [node for node in snapshot.nodes if node.open and (job.nodes is None or node.id in job.nodes)]


def _smaller_sizes(gpus: int) -> Iterator[int]:
    """Yield smaller numbers of GPUs, the largest first, in steps of about an eighth while they are large."""
    size = gpus - 1
    while size >= 1:
        yield size
        size -= 1 if size <= ALL_SIZES_UP_TO else max(1, size // 8)


def _elastic_variant(row: Job, job: types.Job) -> Iterator[ProposedChange]:
    """Yield the elastic variant, only for code that uses ``hvd.elastic``: other code fails when its GPUs change."""
    if row.launcher == Job.Launcher.HOROVOD and not row.elastic and row.max_gpus > 1 and row.code.guess.get("elastic"):
        message = messages.ElasticFromOne(row.max_gpus)
        yield ProposedChange(ELASTIC, message, {"elastic": True, "min_gpus": 1}, replace(job, elastic=True, min_gpus=1))


def _other_environments(row: Job, job: types.Job, snapshot: Snapshot) -> Iterator[ProposedChange]:
    """Yield environments that have all modules that its code imports, and are ready where its own is not."""
    opened = {node.id for node in snapshot.nodes if node.open}
    here = job.nodes if job.nodes is not None else opened
    ready: dict[int, set[str]] = {}
    rows = NodeEnvironment.objects.filter(state=NodeEnvironment.State.READY, node__in=set(map(node_of, opened)))
    for key, node in rows.values_list("environment", "node"):
        ready.setdefault(key, set()).update(id for id in opened if node_of(id) == node)
    others = Environment.objects.usable_in(row.project).filter(pk__in=ready).exclude(pk=row.environment_id)
    for environment in others.order_by("position", "key"):
        nodes = ready[environment.pk]
        if nodes <= here or inspection.missing_modules(row.code.guess, environment.packages):
            continue
        message = messages.OtherEnvironment(environment.title, len(nodes - here), bool(here))
        changed = replace(job, nodes=frozenset(nodes), blocked=None, spread=_may_spread(row, nodes))
        yield ProposedChange(f"environment-{environment.key}", message, {"environment": environment}, changed)


def _may_spread(row: Job, nodes: set[str]) -> bool:
    if row.launcher == Job.Launcher.COMMAND:
        return False
    facts = Node.objects.filter(pk__in=set(map(node_of, nodes))).values_list("facts", flat=True)
    return all(each.get("ring_address") for each in facts)


def _shorter_time_limits(row: Job, job: types.Job) -> Iterator[ProposedChange]:
    expected = None if job.work is None else estimates.remaining_seconds(job, job.asked)
    for seconds in TIME_LIMITS:
        if seconds >= row.time_limit_seconds or (expected is not None and seconds < LENGTH_MARGIN * expected):
            continue
        message = messages.ShorterLimit(seconds, row.time_limit_seconds, expected is not None)
        changed = replace(job, longest_seconds=float(seconds))
        yield ProposedChange(f"time-{seconds}", message, {"time_limit_seconds": seconds}, changed)


def _preemptible_variants(row: Job, job: types.Job) -> Iterator[ProposedChange]:
    if not row.resumable:
        changed = replace(job, preemptible=True)
        yield ProposedChange(RESUMABLE, messages.RestartingFromCheckpoint(), {"resumable": True}, changed)
    if not row.opportunistic and row.tier != Job.Tier.PREMIUM:
        changed = replace(job, opportunistic=True, preemptible=True)
        yield ProposedChange(OPPORTUNISTIC, messages.PreemptibleOnIdleGpus(), {"opportunistic": True}, changed)


# --- trying them -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HelpResult:
    """The changes that help a job."""

    helpful: tuple[HelpfulChange, ...] = ()
    tried: tuple[str, ...] = ()
    """The kinds of changes that are possible for this job."""
    about_to_start: bool = False


def find_helpful_changes(
    policy: Policy, snapshot: Snapshot, job: types.Job, changes: Sequence[ProposedChange], *, seconds: float = SECONDS
) -> HelpResult:
    """Return at most three changes that help, one of each kind, those that start the job now first.

    Tries as many as there is time for.
    """
    deadline = time.perf_counter() + seconds
    tried = tuple(dict.fromkeys(change.kind for change in changes))
    if starts_now(policy, snapshot, job.id):
        return HelpResult(about_to_start=True)

    def helps(change: ProposedChange) -> bool:
        return starts_now(policy, with_change(snapshot, job, change), change.job.id)

    found: dict[str, HelpfulChange] = {}
    sizes = [change for change in changes if change.kind == "gpus"]
    if best := _largest_helpful_size(helps, sizes, deadline):
        found[best.kind] = HelpfulChange(best)
    for change in changes:
        if len(found) == MAX_SHOWN or time.perf_counter() > deadline:
            break
        if change not in sizes and change.kind not in found and helps(change):
            found[change.kind] = HelpfulChange(change)
    rest = [change for change in _candidates_to_simulate(changes) if change.kind not in found]
    if rest and len(found) < MAX_SHOWN and time.perf_counter() < deadline:
        _simulate(policy, snapshot, job, rest, found, deadline)
    return HelpResult(tuple(found.values()), tried)


def _largest_helpful_size(
    helps: Callable[[ProposedChange], bool], sizes: Sequence[ProposedChange], deadline: float
) -> ProposedChange | None:
    """Find the largest size that helps by bisection: if a size helps, smaller ones nearly always do.

    The size that is returned has been tried.
    """
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


def with_change(snapshot: Snapshot, job: types.Job, change: ProposedChange) -> Snapshot:
    """Return the snapshot with the changed job in place of the job."""
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
    """Return whether the policy gives the job GPUs in this scheduling cycle."""
    plan = decide(policy, snapshot)
    return any(plan.target.get(job, {}).values()) and not violations(snapshot, plan)


def _candidates_to_simulate(changes: Sequence[ProposedChange]) -> list[ProposedChange]:
    """Return the changes to simulate: of the sizes only the halves, since each change takes several futures."""
    sizes = [change for change in changes if change.kind == "gpus"]
    first = sizes[0].job.min_gpus + 1 if sizes else 0
    halves = {first >> shift for shift in range(1, first.bit_length())}
    return [change for change in changes if change.kind != "gpus" or change.job.min_gpus in halves]


def _simulate(
    policy: Policy,
    snapshot: Snapshot,
    job: types.Job,
    changes: Sequence[ProposedChange],
    found: dict[str, HelpfulChange],
    deadline: float,
) -> None:
    """Add the changes that start the job clearly sooner. A start beyond the horizon counts as one at the horizon."""

    def starts(world: Snapshot, id: str, horizon: float) -> tuple[tuple[float, ...], float]:
        futures = simulate_futures(
            policy,
            world,
            [id],
            draws=DRAWS,
            min_draws=DRAWS,
            horizon=horizon,
            seconds=FUTURE_SECONDS,
            with_bounds=False,
        )
        return tuple(at - snapshot.now for at in futures.starts[id]), futures.until - snapshot.now

    try:
        as_is, reached = starts(snapshot, job.id, HORIZON_SECONDS)
        bounded = tuple(min(at, reached) for at in as_is)
        if bounded[-1] < SOONER_SECONDS:
            return
        for change in changes:
            if len(found) == MAX_SHOWN or time.perf_counter() > deadline:
                return
            if change.kind in found:
                continue
            changed, _ = starts(with_change(snapshot, job, change), change.job.id, bounded[-1])
            if clearly_sooner(changed, bounded):
                sooner = _saved_seconds(changed, bounded) if as_is[-1] != NEVER else None
                found[change.kind] = HelpfulChange(change, changed[0], changed[-1], sooner)
    except InvalidPlanError:
        return


def clearly_sooner(changed: Sequence[float], as_is: Sequence[float]) -> bool:
    """Return whether the changed job starts clearly sooner; both lists are sorted and of equally many futures."""
    if changed[-1] == NEVER:
        return False
    better = sum(
        after + SOONER_SECONDS <= before and after <= SOONER_FACTOR * before
        for after, before in zip(changed, as_is, strict=True)
    )
    return better >= MIN_SOONER_SHARE * len(as_is)


def _saved_seconds(changed: Sequence[float], as_is: Sequence[float]) -> tuple[float, float]:
    """Return the least and the most seconds saved, in the futures in which a helpful change helps most."""
    saved = sorted(before - after for after, before in zip(changed, as_is, strict=True))
    return saved[len(saved) - math.ceil(MIN_SOONER_SHARE * len(saved))], saved[-1]
