"""Laws about what became of jobs: judged from their history, attempts and end."""

from collections import defaultdict
from collections.abc import Iterator

from tests.outside.record import FINISHED, RUNNING, Attempt, Job, Poll, Record, Violation

CANCEL_SECONDS = 10.0
DAMPING_SECONDS = 3.0
ASKED_SECONDS = 4.0
"""What a person did so long before a stop may be its cause."""
PROGRESS_SECONDS = 20.0
NON_PREEMPTING = ("fifo ", "elastic_fifo ")
"""Policies that by their description stop no job of their own."""
USAGE_PART, USAGE_SECONDS = 0.005, 2.0


def held_jobs_never_start(record: Record) -> Iterator[Violation]:
    holds = sorted(record.acts_of("hold", "release"), key=lambda act: act.began)
    for hold in holds:
        if hold.what == "release":
            continue
        until = next((act.began for act in holds if act.job == hold.job and act.began > hold.began), float("inf"))
        for event in record.events.get(hold.job or 0, ()):
            if event.kind == "placed" and hold.ended < event.at < until:
                yield Violation(
                    "held jobs never start", event.at, f"on hold since {hold.ended:.2f}: {event.text}", hold.job
                )


def cancelled_jobs_end_in_time(record: Record) -> Iterator[Violation]:
    for act in record.acts_of("cancel"):
        job = record.jobs[act.job or 0]
        ended = job.finished_at if job.finished_at is not None else float("inf")
        if ended > act.ended + CANCEL_SECONDS:
            text = f"cancelled, and {job.state} after {ended - act.ended:.1f} s"
            yield Violation("cancelled jobs end in time", act.ended, text, job.id)


def jobs_that_cannot_stop_are_not_preempted(record: Record) -> Iterator[Violation]:
    for job, attempt, at in _preemptions(record):
        if not job.can_be_stopped:
            text = f"attempt {attempt.number} was preempted, and the job is not resumable"
            yield Violation("jobs that cannot stop are not preempted", at, text, job.id)


def policies_that_do_not_preempt_stop_no_job(record: Record) -> Iterator[Violation]:
    """But for a higher layer, or a reservation."""
    for job, attempt, at in _preemptions(record):
        policy = record.policy_between(at - ASKED_SECONDS, at + 0.2) or ""
        polls = record.between(at - ASKED_SECONDS, at)
        if not policy.startswith(NON_PREEMPTING) or not polls:
            continue
        for_higher = any(other.waits and other.layer < job.layer for poll in polls for other in poll.jobs.values())
        reserved = any(item.node in attempt.nodes and item.start <= at for poll in polls for item in poll.reservations)
        if not (for_higher or reserved):
            text = f"attempt {attempt.number} was preempted under {policy} for no job of a higher tier"
            yield Violation("policies that do not preempt stop no job", at, text, job.id)


def no_preemption_soon_after_placement(record: Record) -> Iterator[Violation]:
    """Unless a person asked for something that may be its cause."""
    for job, attempt, at in _preemptions(record):
        if at - attempt.created_at >= DAMPING_SECONDS or _a_person_asked(record, attempt, at):
            continue
        text = f"attempt {attempt.number} was stopped {at - attempt.created_at:.2f} s after it was placed"
        yield Violation("no preemption within 3 s of placement", at, text, job.id)


def _a_person_asked(record: Record, attempt: Attempt, at: float) -> bool:
    """A policy switched, a reservation made, cancelled or begun, a machine drained or resumed."""
    since = attempt.created_at - ASKED_SECONDS
    if any(act.began <= at and act.ended >= since for act in record.acts_of(*BY_ADMINS)):
        return True
    starts = (item.start for poll in record.between(since - 1.0, at + 2.0) for item in poll.reservations)
    return any(since <= start <= at for start in starts)


BY_ADMINS = ("policy", "reserve", "unreserve", "drain", "resume", "delete", "restart")


def _preemptions(record: Record) -> Iterator[tuple[Job, Attempt, float]]:
    """With the moment of the stop."""
    for id, attempts in record.attempts.items():
        for attempt in (each for each in attempts if each.stop_reason == "preempted"):
            # The second is the text of earlier releases.
            begins = tuple(f"Attempt {attempt.number} was {word} to stop" for word in ("asked", "told"))
            at = next((event.at for event in record.events.get(id, ()) if event.text.startswith(begins)), None)
            if at is not None:
                yield record.jobs[id], attempt, at


def every_job_ends_rightly(record: Record) -> Iterator[Violation]:
    cancelled = {act.job for act in record.acts_of("cancel")}
    for id, asked in record.asked.items():
        job, attempts = record.jobs[id], record.attempts.get(id, ())
        outcomes = [attempt.outcome for attempt in attempts]
        at = job.finished_at or job.submitted_at
        problem = ""
        if job.state not in FINISHED:
            problem = f"it is {job.state} after everything has ended: “{job.reason}”"
        elif id in cancelled:
            problem = "" if job.state == "CANCELLED" else f"it was cancelled and is {job.state}"
        elif asked.overruns:
            right = job.state == "FAILED" and outcomes[-1:] == ["timed_out"]
            problem = "" if right else f"it ran beyond its time limit and is {job.state} after {outcomes}"
        elif asked.exit_code:
            right = job.state == "FAILED" and outcomes.count("failed") == asked.retries + 1
            problem = "" if right else f"it fails {asked.retries + 1} times and is {job.state} after {outcomes}"
        elif job.state != "SUCCEEDED":
            problem = f"its program succeeds, and it is {job.state} after {outcomes}"
        if problem:
            yield Violation("every job ends rightly", at, problem, id)
        for attempt in attempts:
            if attempt.outcome in ("error", "lost"):
                details = "; ".join(part.detail for part in attempt.parts if part.detail)
                text = f"attempt {attempt.number} ended as {attempt.outcome}: {details}"
                yield Violation("every job ends rightly", attempt.ended_at or at, text, id)
            for part in attempt.parts:
                if part.exit_reason == "create_error" and attempt.outcome != "error":
                    text = f"container {part.name} could not be made: {part.detail}"
                    yield Violation("every job ends rightly", part.exited_at or at, text, id)


def usage_adds_up(record: Record) -> Iterator[Violation]:
    """The usage report has what the timeline has, person by person and together."""
    held: defaultdict[str, float] = defaultdict(float)
    for span in record.spans:
        until = span.until if span.until is not None else record.usage_at
        held[record.jobs[span.job].owner] += until - span.since
    at = record.usage_at
    for who in sorted(held.keys() | record.usage.keys()):
        ours, theirs = held[who], record.usage.get(who, 0.0)
        if abs(ours - theirs) > USAGE_PART * ours + USAGE_SECONDS:
            text = f"{who} held {ours:.1f} GPU-seconds by the timeline and {theirs:.1f} by the usage report"
            yield Violation("usage adds up", at, text)
    if abs(sum(record.usage.values()) - record.usage_total) > USAGE_SECONDS:
        text = f"the usage report's people have {sum(record.usage.values()):.1f} GPU-seconds, its total {record.usage_total:.1f}"
        yield Violation("usage adds up", at, text)


def no_request_fails(record: Record) -> Iterator[Violation]:
    """For the portal's reasons: no 5xx, no connection that breaks."""
    for failure in record.failures:
        yield Violation("no request fails", failure.at, f"{failure.request}: {failure.answer}")


def running_jobs_make_progress(record: Record) -> Iterator[Violation]:
    """While an attempt is at work, the step that it reports grows."""
    reports: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
    for each in record.steps:
        reports[each.job].append((each.at, -1 if each.step is None else each.step))
    for job, seen in reports.items():
        grew_at, last = seen[0][0], seen[0][1]
        for at, step in seen:
            started = _at_work_since(record, job, at)
            if step != last or started is None:
                grew_at, last = at, step
                continue
            still = at - max(grew_at, started)
            if still > PROGRESS_SECONDS:
                text = f"it is RUNNING and has reported no step after {step if step >= 0 else 'none'} for {still:.0f} s"
                yield Violation("running jobs make progress", at, text, job)
                break


def _at_work_since(record: Record, job: int, at: float) -> float | None:
    """Since when the attempt of that moment has run; None where it did not, or was asked to stop."""
    for attempt in record.attempts.get(job, ()):
        ended = attempt.ended_at if attempt.ended_at is not None else float("inf")
        if attempt.started_at is not None and attempt.started_at <= at <= ended and not attempt.stop_reason:
            return attempt.started_at
    return None


def running_jobs_hold_gpus(record: Record) -> Iterator[Violation]:
    """A job that is RUNNING for a while without any GPU does nothing."""
    without: dict[int, Poll] = {}
    for poll in record.polls:
        now = {id for id, job in poll.jobs.items() if job.state == RUNNING and not poll.held_by(id)}
        without = {id: without.get(id, poll) for id in now}
        for id, first in list(without.items()):
            if poll.began - first.began > 2 * CANCEL_SECONDS:
                text = f"it is RUNNING without a GPU for {poll.began - first.began:.0f} s"
                yield Violation("running jobs hold GPUs", poll.began, text, id)
                without[id] = Poll(began=float("inf"), nodes_ended=0.0, ended=0.0)  # once is enough
