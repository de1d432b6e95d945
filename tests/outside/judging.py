"""All laws, and how what breaks them is reported: with the seed, the moment, and the two polls around it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from tests.outside import history_laws, laws
from tests.outside.reason_law import every_reason_is_true
from tests.outside.record import Poll, Record, Violation

Law = Callable[[Record], Iterator[Violation]]
LAWS: tuple[Law, ...] = (
    laws.no_gpu_is_held_twice,
    laws.limits_are_kept,
    laws.reservations_are_kept,
    laws.no_lower_layer_passes_one_that_fits,
    laws.no_one_passes_a_strict_line_for_good,
    laws.the_timeline_equals_the_polls,
    laws.no_job_runs_below_its_minimum_in_silence,
    laws.every_waiting_job_has_a_reason,
    every_reason_is_true,
    history_laws.held_jobs_never_start,
    history_laws.cancelled_jobs_end_in_time,
    history_laws.jobs_that_cannot_stop_are_not_preempted,
    history_laws.policies_that_do_not_preempt_stop_no_job,
    history_laws.no_preemption_soon_after_placement,
    history_laws.every_job_ends_rightly,
    history_laws.usage_adds_up,
    history_laws.no_request_fails,
    history_laws.running_jobs_make_progress,
    history_laws.running_jobs_hold_gpus,
)


def violations(record: Record, only: Sequence[Law] = LAWS) -> list[Violation]:
    """In the order in which they happened."""
    return sorted((found for law in only for found in law(record)), key=lambda found: found.at)


def report(record: Record, found: Sequence[Violation]) -> str:
    """For a terminal: what broke which law, when, and what was seen just before and after."""
    placed = sum(len(attempts) for attempts in record.attempts.values())
    preempted = sum(each.stop_reason == "preempted" for attempts in record.attempts.values() for each in attempts)
    lines = [
        f"seed {record.seed}: {len(record.asked)} jobs, {placed} attempts, {preempted} preempted, {len(record.polls)} polls,"
        f" {record.requests} requests, {_counts(act.what for act in record.acts)}: {len(found)} violations"
    ]
    for each in found:
        job = f"job {each.job}: " if each.job is not None else ""
        lines.append(f"- {clock(each.at)} (seed {record.seed}) {each.law}: {job}{each.text}")
        lines += [f"    {line}" for poll in record.around(each.at) if poll for line in shown(poll, each.job)]
    if found:
        lines.append(f"Broken: {_counts(each.law for each in found)}")
    return "\n".join(lines)


def _counts(words: Iterable[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(Counter(words).items()))


def shown(poll: Poll, job: int | None) -> list[str]:
    """A poll in short, and one of its jobs in full."""
    nodes = " ".join(
        f"{node.name}{'' if node.open else ' (closed)'}[{' '.join('-' if held is None else str(held) for held in node.holders)}]"
        for node in poll.nodes
    )
    lines = [f"poll {clock(poll.began)} under {poll.policy}: {nodes}"]
    lines += [f"  reserved: {item.gpus} of {item.node} for {sorted(item.users)}" for item in poll.reservations]
    if job is not None:
        lines.append(f"  {poll.jobs.get(job, 'the job is not among the unfinished')}")
    return lines


def clock(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%H:%M:%S.%f}"[:-3]
