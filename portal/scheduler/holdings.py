"""Which GPUs jobs hold now, and how much GPU time they have used before."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Case, Count, DurationField, ExpressionWrapper, F, Max, Min, Q, Sum, When
from django.db.models.functions import Coalesce, Greatest
from django.db.models.query import QuerySet

from portal.cluster.models import usable_gpu
from portal.cluster.pools import PoolId, pool_id
from portal.jobs import rules
from portal.jobs.models import Allocation, Attempt, Container, ContainerState, Job, JobState


@dataclass
class Holding:
    """The GPUs that a job's live attempt holds."""

    attempt: int
    stopping: bool
    kept: Counter[str] = field(default_factory=Counter)
    base: Counter[str] = field(default_factory=Counter)
    leaving: int = 0
    placed_at: datetime | None = None
    share_factor: int = 1
    """How often its GPUs count in shares."""
    batch: int = 0
    """The batch size that the policy chose for it; 0 when the job chooses its own."""
    has_overlay_network: bool = False
    """It has an overlay network over several nodes."""
    since: list[tuple[float, int]] = field(default_factory=list)
    """(since when, how many) of all GPUs that it holds, leaving or not."""

    @property
    def counted_since(self) -> list[tuple[float, int]]:
        """Return ``since`` with the GPUs as they count in shares."""
        return [(at, self.share_factor * gpus) for at, gpus in self.since]


@dataclass
class PastUsage:
    """What a job's attempts have used so far."""

    attempts: int = 0
    gpu_seconds: float = 0.0
    run_seconds: float = 0.0
    first_started_at: float | None = None
    since: float | None = None
    done: list[tuple[float, float]] = field(default_factory=list)
    """(GPUs, seconds) of the work that it can continue from."""
    unsaved_gpu_seconds: float = 0.0
    """GPU-seconds of the live attempt since the job's newest checkpoint; all of them when it cannot resume from one."""
    counted_seconds: int = 0
    """Seconds of earlier attempts that count against its time limit."""


def active_jobs() -> QuerySet[Job]:
    """Return the jobs that want or hold GPUs: those waiting to run, and those with a live attempt.

    Those that wait for another job do not want any yet.
    """
    live = Attempt.objects.filter(ended_at__isnull=True).values("job")
    # This filter adds nothing but an index: without it every job that ever was would be read.
    ours = Job.objects.filter(state__in=(JobState.QUEUED, JobState.RUNNING))
    ready = Q(after=None) | Q(ready_at__isnull=False)
    return ours.filter(Q(ready, state=JobState.QUEUED, intent=Job.Intent.RUN) | Q(pk__in=live)).order_by("pk")


def read_holdings(
    intents: Mapping[int, str], pools: Collection[PoolId]
) -> tuple[dict[int, Holding], Counter[PoolId], Counter[PoolId]]:
    """Return by job what its live attempt holds; by pool how many usable GPUs are held, and how many of these leave.

    ``intents`` has the intents of the active jobs, ``pools`` the ids of all pools.
    """
    holdings = {
        job: Holding(
            attempt,
            wanted == Attempt.Wanted.STOP,
            placed_at=placed_at,
            share_factor=share_factor,
            batch=batch or 0,
            has_overlay_network=network is not None,
        )
        for attempt, job, wanted, placed_at, share_factor, batch, network in Attempt.objects.filter(
            ended_at__isnull=True
        ).values_list("pk", "job", "wanted", "created_at", "share_factor", "chosen__batch", "overlay_network")
    }
    bases = _base_hosts()
    held: Counter[PoolId] = Counter()
    leaving: Counter[PoolId] = Counter()
    # A container got all its GPUs at once: one row for all of them that are in one pool.
    usable_ones = Count("pk", filter=usable_gpu("gpu__"))
    live = (
        Allocation.objects.filter(released_at__isnull=True)
        .values_list("container", "requested_back_at", "allocated_at", "attempt__job", "gpu__node", "gpu__model")
        .annotate(count=Count("pk"), usable=usable_ones)
        .order_by("container", "allocated_at")
    )
    for container, asked_back, since, job, node, model, count, usable in live:
        holding = holdings.get(job)
        pool = pool_id(node, model, pools)
        held[pool] += usable
        if holding is not None:
            holding.since.append((since.timestamp(), count))
        if holding is None or holding.stopping or asked_back:
            leaving[pool] += usable
            if holding is not None:
                holding.leaving += count
            continue
        holding.kept[pool] += count
        if container == bases.get(holding.attempt):
            holding.base[pool] += count
    for job, holding in holdings.items():
        if not holding.stopping and (not holding.kept or intents.get(job) != Job.Intent.RUN):
            _mark_stopping(holding, leaving)
    return holdings, held, leaving


def _mark_stopping(holding: Holding, leaving: Counter[PoolId]) -> None:
    """Count a job as stopping that ends without a preemption: its last container exited, or a user wants it stopped."""
    holding.stopping = True
    for pool, gpus in holding.kept.items():
        leaving[pool] += gpus
        holding.leaving += gpus
    holding.kept.clear()
    holding.base.clear()


def _base_hosts() -> dict[int, int]:
    """Return the first host of each live attempt; the attempt cannot release its GPUs without a restart.

    When an attempt continues without its first host, the next one takes its place.
    """
    hosts = Container.objects.filter(
        attempt__ended_at__isnull=True, role=Container.Role.HOST, wanted=Container.Wanted.RUN
    ).exclude(state=ContainerState.EXITED)
    first: dict[int, int] = {}
    for pk, attempt in hosts.order_by("attempt", "index").values_list("pk", "attempt"):
        first.setdefault(attempt, pk)
    return first


def read_past_usage(now: datetime) -> dict[int, PastUsage]:
    """Return what the attempts of active jobs have used, by job."""
    until = Coalesce(F("released_at"), now)
    saved = When(
        attempt__job__resumable=True,
        attempt__job__checkpoint_set__attempt=F("attempt"),
        attempt__job__checkpoint_set__size__gt=0,
        then=F("attempt__job__checkpoint_set__taken_at"),
    )
    unsaved_from = Greatest(F("allocated_at"), Case(saved, default=F("allocated_at")))
    rows = (
        Allocation.objects.filter(attempt__job__in=active_jobs().values("pk"))
        .values_list(
            "attempt__job",
            "attempt__number",
            "attempt__job__resumable",
            "attempt__outcome",
            "attempt__started_at",
            "attempt__ended_at",
        )
        .annotate(
            held=Sum(ExpressionWrapper(until - F("allocated_at"), output_field=DurationField())),
            unsaved=Sum(ExpressionWrapper(Greatest(until, unsaved_from) - unsaved_from, output_field=DurationField())),
            first=Min("allocated_at"),
            last=Max(until),
            given=Max("allocated_at"),
            asked_back=Max("requested_back_at"),
        )
        .order_by("attempt__job", "attempt__number")
    )
    found: dict[int, PastUsage] = defaultdict(PastUsage)
    for job, number, resumable, outcome, started, ended, held, unsaved, first, last, given, asked_back in rows:
        past = found[job]
        lives = ended is None
        gpu_seconds = max(0.0, held.total_seconds())
        seconds = max(0.0, (last - first).total_seconds())
        past.attempts = number
        past.gpu_seconds += gpu_seconds
        past.run_seconds += seconds
        past.first_started_at = past.first_started_at or first.timestamp()
        past.since = max(given, asked_back or given).timestamp() if lives else last.timestamp()
        past.counted_seconds += rules.seconds_counted(resumable, [(outcome, started, ended)])
        if lives:
            past.unsaved_gpu_seconds = unsaved.total_seconds()
        if seconds and (lives or (resumable and outcome in rules.CHECKPOINTED_OUTCOMES)):
            past.done.append((gpu_seconds / seconds, seconds))
    return found
