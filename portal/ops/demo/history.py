"""The histories of the month's jobs, line by line."""

from collections.abc import Iterator, Mapping, Sequence

from portal.jobs import causes, events
from portal.jobs.events import Event, NodeShare
from portal.jobs.models import Job, JobEvent, JobState, Outcome
from portal.ops.demo.rows import AttemptRecord, MonthRows
from portal.ops.demo.simulation import LOST_AT, DemoJob
from portal.scheduler.events import Resized

HistoryLine = tuple[float, Event, bool]
"""(When, in seconds since the start of the month; what happened; whether the owner did it)."""


def history_lines(
    written: MonthRows, more: Mapping[int, Sequence[HistoryLine]] | None = None
) -> Iterator[tuple[Job, list[HistoryLine]]]:
    """Yield each job with its history. Call it after ``find_causes``, because the lines name the causes.

    ``more`` has lines that the simulation does not know, by job.
    """
    by_job: dict[int, list[AttemptRecord]] = {job.pk: [] for job in written.jobs}
    for record in written.attempt_records:
        by_job[record.job.pk].append(record)
    for demo_job, job in zip(written.demo_jobs, written.jobs, strict=True):
        lines = [*_job_history(demo_job, job, by_job[job.pk]), *(more or {}).get(job.pk, ())]
        yield job, sorted(lines, key=lambda line: line[0])


def write_history(written: MonthRows, histories: Sequence[tuple[Job, list[HistoryLine]]]) -> None:
    """Write what ``history_lines`` yields."""
    JobEvent.objects.bulk_create(
        (
            JobEvent(
                job=job, seq=seq, at=written.at(when), kind=event.kind, data=event.data(),
                actor=job.submitted_by if own else None,
            )
            for job, lines in histories
            for seq, (when, event, own) in enumerate(lines, start=1)
        ),
        batch_size=500,
    )  # fmt: skip


def _job_history(demo_job: DemoJob, job: Job, records: Sequence[AttemptRecord]) -> Iterator[HistoryLine]:
    yield demo_job.request.submitted, events.Submitted(str(job.submitted_by)), True
    if demo_job.status == JobState.CANCELLED and demo_job.finished is not None:
        asked = min(
            demo_job.finished,
            *(each.simulated.stopped_at or demo_job.finished for each in records),
            demo_job.finished,
        )
        yield asked, events.Cancelled(str(job.submitted_by)), True
    for each in records:
        yield from _attempt_history(each)
    if demo_job.finished is not None:
        yield demo_job.finished, events.StateChanged(str(demo_job.status)), False


def _attempt_history(record: AttemptRecord) -> Iterator[HistoryLine]:
    attempt, simulated, number = record.attempt, record.simulated, record.number
    shares = [
        NodeShare(node=node, gpus=count, cpu_slots=False) for node, count in sorted(_first_placement(record).items())
    ]
    yield simulated.placed, events.Placed(number, attempt.policy, shares), False
    yield simulated.placed, events.StateChanged("RUNNING"), False
    if record.began is not None:
        yield record.began, events.Started(number), False
    for when, before, after in simulated.resizes:
        yield when, Resized(before, after, cpu_slots=False), False
    for host in record.hosts:
        if host.exit_reason == "lost":
            yield LOST_AT, events.ContainerLost(host.name, host.node.name, "lost"), False
    if simulated.stopped_at is not None and attempt.stop_reason:
        yield simulated.stopped_at, events.Stopping(number, attempt.stop_reason, record.job.resumable), False
    if simulated.ended is not None:
        outcome = attempt.outcome
        yield simulated.ended, events.Ended(number, outcome, causes.without_detail(attempt.cause)), False
        if outcome in (Outcome.PREEMPTED, Outcome.LOST) and number <= len(record.demo_job.attempts):
            restarts = outcome == Outcome.PREEMPTED
            yield simulated.ended, events.StateChanged("QUEUED", True, restarts, record.job.resumable), False


def _first_placement(record: AttemptRecord) -> dict[str, int]:
    found: dict[str, int] = {}
    for holding, host in zip(record.simulated.holdings, record.hosts, strict=True):
        if holding.since == record.simulated.placed:
            found[host.node.name] = found.get(host.node.name, 0) + holding.gpus
    return found
