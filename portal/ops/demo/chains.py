"""Jobs that start after another one: a pair that has ended, and one that waits."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from portal.jobs import events
from portal.jobs.dependencies import WaitsForJob
from portal.jobs.models import Job, JobEvent, JobState, Output
from portal.ops.demo.history import HistoryLine
from portal.ops.demo.rows import MonthRows
from portal.ops.demo.simulation import DemoJob
from portal.ops.demo.workload import NIGHTLY

CHILD_NAME = "evaluation"
MAX_APART_SECONDS = 86_400.0
"""The maximum time between the end of a job and the submission of another that uses its outputs."""


def chain_past(written: MonthRows) -> dict[int, list[HistoryLine]]:
    """Let a job of the month start after another one and use its outputs; return the lines of its history.

    The newest pair counts; one that was submitted while the first job ran is preferred.
    """
    with_outputs = set(Output.objects.values_list("job", flat=True))
    pairs = list(zip(written.demo_jobs, written.jobs, strict=True))
    succeeded = [(demo, job) for demo, job in reversed(pairs) if _is_usual(demo)]
    later: tuple[Job, Job, float] | None = None
    for demo, job in succeeded:
        for first, parent in succeeded:
            if parent.pk not in with_outputs or not _could_follow(first, parent, demo, job) or first.finished is None:
                continue
            ready = max(first.finished + 1.0, demo.request.submitted)
            if first.finished > demo.request.submitted:
                return _link(written, parent, job, ready)
            later = later or (parent, job, ready)
    return _link(written, *later) if later else {}


def _is_usual(demo: DemoJob) -> bool:
    """Whether a person submitted it, and it succeeded."""
    return demo.status == JobState.SUCCEEDED and demo.request.pattern is not NIGHTLY


def _could_follow(first: DemoJob, parent: Job, demo: DemoJob, job: Job) -> bool:
    if first.finished is None or parent.project_id != job.project_id or parent.submitted_by_id != job.submitted_by_id:
        return False
    apart = demo.request.submitted - first.finished
    before = parent.pk < job.pk and first.finished + 2.0 < demo.attempts[0].placed
    return before and apart < MAX_APART_SECONDS and len(demo.attempts) == 1


def _link(written: MonthRows, parent: Job, job: Job, ready: float) -> dict[int, list[HistoryLine]]:
    job.after, job.use_outputs, job.name, job.ready_at = parent, True, CHILD_NAME, written.at(ready)
    job.save(update_fields=["after", "use_outputs", "name", "ready_at", "search_text"])
    return {job.pk: [(ready, events.Ready(parent.pk), False)]}


def submit_waiting(written: MonthRows, now: datetime) -> Job | None:
    """Submit a job that starts after one that runs and uses its outputs; None if none runs that will succeed."""
    running: Sequence[tuple[DemoJob, Job]] = [
        (demo, job)
        for demo, job in zip(written.demo_jobs, written.jobs, strict=True)
        if demo.status == JobState.RUNNING and job.started_at is not None
    ]
    if not running:
        return None
    _, parent = min(running, key=lambda each: each[0].remaining_seconds)
    at = max(parent.submitted_at, now - timedelta(minutes=11))
    values: dict[str, Any] = {field.attname: getattr(parent, field.attname) for field in Job._meta.concrete_fields}
    values |= {"id": None, "uid": uuid4(), "name": CHILD_NAME, "submitted_at": at, "deadline": None}
    values |= {"state": JobState.QUEUED, "started_at": None, "max_gpus": parent.min_gpus}
    values |= {"after_id": parent.pk, "use_outputs": True}
    values |= {"waiting_reason": WaitsForJob(parent.pk, JobState.RUNNING).data()}
    job = Job(**values)
    job.save(force_insert=True)
    event = events.Submitted(str(parent.submitted_by))
    JobEvent.objects.create(job=job, seq=1, at=at, kind=event.kind, data=event.data(), actor=parent.submitted_by)
    return job
