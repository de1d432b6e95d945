"""Reads ``ledger.Facts`` from the database: what happened between two moments, in six queries for any number of jobs."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Q

from portal.jobs.models import Allocation, Job, JobEvent, Outcome
from portal.usage.ledger import Facts, HeldSpan, JobSpan
from portal.usage.models import CapacitySpell, ShareWeight

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
WASTE_BY_OUTCOME: dict[str, str] = {
    Outcome.FAILED: "failed",
    Outcome.TIMED_OUT: "failed",
    Outcome.ERROR: "failed",
    Outcome.PREEMPTED: "interrupted",
    Outcome.LOST: "interrupted",
    Outcome.HELD: "interrupted",
}


def to_microseconds(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def read(since: datetime, until: datetime, now: datetime) -> Facts:
    """Read what happened from ``since`` to ``until``; what has not ended is cut off at ``now``."""
    end = to_microseconds(now)

    def to(moment: datetime | None) -> int:
        return end if moment is None else to_microseconds(moment)

    wanted = Q(submitted_at__lt=until) & (Q(finished_at__isnull=True) | Q(finished_at__gt=since))
    lines = list(
        Allocation.objects.filter(allocated_at__lt=until)
        .filter(Q(released_at__isnull=True) | Q(released_at__gt=since))
        .order_by("gpu", "allocated_at")
        .values_list(
            "gpu",
            "attempt__job",
            "allocated_at",
            "released_at",
            "container__running_at",
            "attempt__outcome",
            "attempt__job__resumable",
        )
    )
    jobs = {row[0]: row for row in Job.objects.filter(wanted).values_list(*JOB_COLUMNS)}
    # An attempt may hold GPUs for a moment after its job has finished.
    late = {job for _, job, *_ in lines} - jobs.keys()
    if late:
        jobs.update({row[0]: row for row in Job.objects.filter(pk__in=late).values_list(*JOB_COLUMNS)})
    events = JobEvent.objects.filter(kind__in=("held", "released"), job__submitted_at__lt=until, at__lt=until).filter(
        Q(job__finished_at__isnull=True) | Q(job__finished_at__gt=since)
    )
    paused = _pauses(
        events.order_by("job", "seq").values_list("job", "kind", "at"), {id: to(row[7]) for id, row in jobs.items()}
    )
    offers = CapacitySpell.objects.filter(since__lt=until).filter(Q(until__isnull=True) | Q(until__gt=since))
    weights = ShareWeight.objects.filter(since__lt=until).order_by("since", "id")
    return Facts(
        offers=[
            (gpu, to_microseconds(first), to(last)) for gpu, first, last in offers.values_list("gpu", "since", "until")
        ],
        jobs=[
            JobSpan(
                id=id,
                account=(group, user),
                project=project,
                max_gpus=max_gpus,
                elastic=elastic,
                since=to_microseconds(ready or submitted),
                # One that still waits for another job, or ended meanwhile, wanted no GPUs yet.
                until=to_microseconds(submitted)
                if after and not ready
                else max(to_microseconds(ready or submitted), to(finished)),
                paused=tuple(paused.get(id, ())),
                started=to_microseconds(started) if started else None,
            )
            for id, user, group, project, max_gpus, elastic, submitted, finished, started, after, ready in (
                jobs[id] for id in sorted(jobs)
            )
        ],
        held=list(_held_spans(lines, to)),
        weights=[
            (to_microseconds(since), (None, user) if user is not None else group, weight)
            for user, group, weight, since in weights.values_list("user", "group", "weight", "since")
        ],
    )


JOB_COLUMNS = (
    "pk",
    "submitted_by",
    "group",
    "project",
    "max_gpus",
    "elastic",
    "submitted_at",
    "finished_at",
    "started_at",
    "after",
    "ready_at",
)


def _held_spans(lines: Iterable[tuple[Any, ...]], to: Callable[[datetime | None], int]) -> Iterator[HeldSpan]:
    """Yield the spans of each GPU without overlaps: the clocks of two processes may differ slightly."""
    free: dict[int, int] = {}
    for gpu, job, since, until, ran, outcome, resumable in lines:
        first, last = max(to(since), free.get(gpu, 0)), to(until)
        free[gpu] = max(first, last)
        lost = WASTE_BY_OUTCOME.get(outcome, "")
        if last > first:
            yield HeldSpan(
                gpu=gpu,
                job=job,
                since=first,
                until=last,
                ran=to(ran) if ran else None,
                lost="" if lost == "interrupted" and resumable else lost,
            )


def _pauses(events: Iterable[tuple[int, str, datetime]], ends: dict[int, int]) -> dict[int, list[tuple[int, int]]]:
    """Return by job the times (from, to) at which it was on hold."""
    paused: dict[int, list[tuple[int, int]]] = defaultdict(list)
    began: dict[int, int] = {}
    for job, kind, at in events:
        if kind == "held":
            began.setdefault(job, to_microseconds(at))
        elif job in began:
            paused[job].append((began.pop(job), to_microseconds(at)))
    for job, since in began.items():
        paused[job].append((since, max(since, ends.get(job, since))))
    return paused
