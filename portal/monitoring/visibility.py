"""Decides what users may see of GPUs: the job that holds one is shown only to users who may see the job.

Whose job it is, all may see unless an admin has hidden the queue.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Exists, OuterRef, Q, QuerySet

from portal.accounts.models import User
from portal.cluster.models import Gpu, usable_gpu
from portal.hues import Mark, mark_of_person
from portal.jobs.models import Allocation, Attempt, Job
from portal.jobs.occupancy import visible_job_ids
from portal.jobs.queue import may_see_queue
from portal.monitoring import series
from portal.monitoring.series import Trace
from portal.search import any_contains

STATES = {"busy": "busy", "mine": "held by my jobs", "free": "free", "unfit": "unfit"}
MAX_SPANS = 600
"""The maximum number of spans on a page of the timeline: more cannot be distinguished."""


@dataclass(frozen=True, slots=True)
class Span:
    """The time in which an attempt held a GPU."""

    gpu: int
    since: datetime
    until: datetime | None
    """None while it is held."""
    attempt: Attempt | None
    """None when the viewer may not see the job."""
    person: Mark | None
    """Who submitted the job; None when the viewer may not know."""
    mine: bool

    @property
    def job(self) -> Job | None:
        return self.attempt.job if self.attempt else None


@dataclass(frozen=True, slots=True)
class Timeline:
    spans: tuple[Span, ...]
    cut: bool
    """There are more spans than are shown."""

    @property
    def people(self) -> list[Mark]:
        """Return whose jobs they are, in the order of their names."""
        return sorted({span.person for span in self.spans if span.person is not None}, key=lambda mark: mark.name)


def gpus_in_lab() -> QuerySet[Gpu]:
    """Return the GPUs of approved nodes, in the order of their names."""
    rows = Gpu.objects.filter(present=True, node__removed_at=None, node__approved_at__isnull=False)
    return rows.select_related("node").order_by("node__name", "node", "index")


def gpus_with_history(since: datetime) -> QuerySet[Gpu]:
    """Return the GPUs of the lab and those that have left it since, with or without their node, if a job held them."""
    held = Allocation.objects.filter(gpu=OuterRef("pk")).filter(Q(released_at=None) | Q(released_at__gt=since))
    rows = Gpu.objects.filter(node__approved_at__isnull=False).filter(
        Q(present=True, node__removed_at=None) | Exists(held)
    )
    return rows.select_related("node").order_by("node__name", "node", "index")


def filter_gpus(
    rows: QuerySet[Gpu], user: User, *, words: str = "", state: str = "", node: int | None = None
) -> QuerySet[Gpu]:
    held = Allocation.objects.filter(gpu=OuterRef("pk"), released_at=None)
    if words := words.replace("\0", "").strip():
        rows = rows.filter(any_contains(words, "node__name", "model"))
    if node is not None:
        rows = rows.filter(node=node)
    if state == "busy":
        rows = rows.filter(Exists(held))
    elif state == "mine":
        rows = rows.filter(Exists(held.filter(attempt__job__submitted_by=user)))
    elif state == "free":
        rows = rows.filter(~Exists(held)).filter(usable_gpu())
    elif state == "unfit":
        rows = rows.exclude(usable_gpu())
    return rows


def timeline(user: User, gpus: Collection[Gpu], since: datetime, until: datetime) -> Timeline:
    """Return who held these GPUs, the latest first. Two or three queries."""
    rows = Allocation.objects.filter(gpu__in=gpus, allocated_at__lt=until)
    rows = rows.filter(Q(released_at=None) | Q(released_at__gt=since)).select_related("attempt__job__submitted_by")
    found = list(rows.order_by("-allocated_at", "-id")[: MAX_SPANS + 1])
    known = visible_job_ids(user, [row.attempt.job_id for row in found])
    names_people = may_see_queue(user)
    spans = []
    for row in found[:MAX_SPANS]:
        attempt = row.attempt if row.attempt.job_id in known else None
        by = row.attempt.job.submitted_by
        person = None
        if attempt is not None or names_people:
            person = mark_of_person(by.pk, by.username, by.first_name, by.last_name)
        spans.append(Span(row.gpu_id, row.allocated_at, row.released_at, attempt, person, by.pk == user.pk))
    return Timeline(tuple(spans), len(found) > MAX_SPANS)


@dataclass(frozen=True, slots=True)
class AttemptReadings:
    """The readings of the GPUs of an attempt while it held them."""

    attempt: Attempt
    gpus: tuple[Gpu, ...]
    trace: Trace


def attempt_readings(attempt: Attempt, now: datetime) -> AttemptReadings | None:
    """Return the readings of an attempt; None if it held no GPU."""
    rows = list(attempt.allocations.select_related("gpu__node").order_by("gpu__node__name", "gpu__index"))
    if not rows:
        return None
    gpus = {row.gpu_id: row.gpu for row in rows}
    periods: dict[int, list[tuple[datetime, datetime]]] = {gpu: [] for gpu in gpus}
    for row in rows:
        periods[row.gpu_id].append((row.allocated_at, row.released_at or now))
    since = min(row.allocated_at for row in rows)
    until = max(row.released_at or now for row in rows)
    return AttemptReadings(attempt, tuple(gpus.values()), series.trace(list(gpus.values()), since, until, now, periods))
