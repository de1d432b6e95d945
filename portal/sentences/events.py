"""What happened to a job: the lines of its history.

The classes of these messages are in the modules ``events`` of the apps.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from portal.sentences.causes import explain_cause
from portal.sentences.registry import nested_sentence, sentence
from portal.sentences.words import devices, policy_words
from portal.ui import duration

MAX_NAMED_RANKS = 4
OUTCOMES = {"timed_out": "timed out", "held": "put on hold"}
"""The words for outcomes that differ from their codes."""
STOP_REASONS = {
    "timed_out": "time limit reached",
    "drained": "its node is being drained",
    "peer_lost": "another part of it was lost",
    "done": "its work is done",
    "held": "put on hold",
    "stuck": "it did not get on in time",
    "gpu_fault": "a GPU of it has failed",
}
STATES = {
    "QUEUED": "is queued",
    "RUNNING": "is running",
    "HELD": "is held",
    "SUCCEEDED": "has succeeded",
    "FAILED": "has failed",
    "CANCELLED": "was cancelled",
}


# --- what users did ----------------------------------------------------------------------------------------------


@sentence
def job_submitted(user: str, copied_from: int | None) -> str:
    return f"Submitted by {user}{f', copied from job {copied_from}' if copied_from else ''}."


@sentence
def job_line_translated(tool: str, entry: str, notes: Sequence[str]) -> str:
    return " ".join(
        [f"The entry was a line of {tool}: its ranks run {entry}, and Schedulearn starts them itself.", *notes]
    )


@sentence
def job_line_advised(text: str) -> str:
    return text


@sentence
def job_ready(after: int) -> str:
    return f"Job {after} has succeeded, so this one is queued now."


@sentence
def job_cannot_start_after(after: int | None, why: str, uses_outputs: bool) -> str:
    if why == "no_access":
        return (
            "Cancelled, because who submitted it may no longer see the job after which it was to start. Ask an owner of "
            "that job's project, or submit it without another job before it."
        )
    if why == "outputs_lost":
        return (
            f"Cancelled, because outputs of job {after}, which it uses, were lost with their node. Run job {after} again, and "
            "submit this one after the new job."
        )
    ended = "has not succeeded" if why == "not_succeeded" else STATES.get(why, why)
    return (
        f"Cancelled, because job {after}, after which it was to start, {ended}. Run job {after} again, and "
        "submit this one after the new job."
    )


@sentence
def job_cancelled(user: str) -> str:
    return f"Cancelled by {user}."


@sentence
def job_held(user: str) -> str:
    return f"Put on hold by {user}."


@sentence
def job_deleted(user: str) -> str:
    return f"Moved to the trash by {user}."


@sentence
def job_restored(user: str) -> str:
    return f"Restored from the trash by {user}."


CLEANED_UP = {
    "outputs": "Its outputs were removed",
    "checkpoints": "Its checkpoints were removed",
    "logs": "Its log and curves were removed",
    "jobs": "Moved to the trash",
}


@sentence
def job_cleaned_up(part: str, days: int) -> str:
    return f"{CLEANED_UP.get(part, part)} by a rule, {days} day{'' if days == 1 else 's'} after its end."


@sentence
def job_kept(user: str, kept: bool) -> str:
    return f"Marked as kept by {user}." if kept else f"No longer kept, as {user} decided."


@sentence
def job_released(user: str) -> str:
    return f"Released by {user}."


@sentence
def job_edited(user: str, changes: Sequence[Mapping[str, Any]]) -> str:
    return f"Changed by {user}: {', '.join(map(_changed_field, changes))}."


def _changed_field(change: Mapping[str, Any]) -> str:
    name = {"time_limit_seconds": "time limit"}.get(change["field"], change["field"])
    before, after = (_value_words(change["field"], change[key]) for key in ("before", "after"))
    if after:
        return f"the {name} from {before} to {after}" if before else f"the {name} to {after}"
    return f"the {name}, which was {before}, is gone" if before else f"the {name}"


def _value_words(field: str, value: Any) -> str:
    if value is None:
        return ""
    if field == "time_limit_seconds":
        return duration(value)
    if field == "deadline":
        return f"{datetime.fromisoformat(value).astimezone(UTC):%d %b %Y %H:%M} UTC"
    return f"“{value}”" if isinstance(value, str) else str(value)


@sentence
def job_time_asked(user: str, seconds: int, reason: str) -> str:
    return f"{user} asked for {duration(seconds)} more{f': “{reason}”' if reason else '.'}"


@sentence
def job_time_withdrawn(user: str, seconds: int) -> str:
    return f"The request for {duration(seconds)} more was withdrawn by {user}."


@sentence
def job_time_granted(user: str, seconds: int, time_limit_seconds: int, asked_by: str) -> str:
    by = user or f"the rule of the lab, as {asked_by} asked"
    return f"{duration(seconds)} more granted by {by}: the time limit is {duration(time_limit_seconds)} now."


@sentence
def job_time_refused(user: str, seconds: int, answer: str) -> str:
    return f"{duration(seconds)} more refused by {user}{f': “{answer}”' if answer else '.'}"


@sentence
def job_requeued(job: int, change: Any) -> str:
    return f"It has the place of job {job} in the queue, {nested_sentence(change).rstrip(',')}."


# --- attempts ----------------------------------------------------------------------------------------------------


@sentence
def attempt_placed(attempt: int, policy: str, nodes: Sequence[Mapping[str, Any]]) -> str:
    shares = (f"{each['node']} ({devices(each['gpus'], each['cpu_slots'])})" for each in nodes)
    where = f" on {' and '.join(shares)}" if nodes else ""
    return f"Attempt {attempt} was placed{where} by {policy_words(policy)}."


@sentence
def attempt_data_is_there(nodes: Sequence[str]) -> str:
    have = "has" if len(nodes) == 1 else "have"
    return f"{' and '.join(nodes)} {have} its datasets already, which counts between nodes that are equal otherwise."


@sentence
def attempt_started(attempt: int) -> str:
    return f"Attempt {attempt} started."


@sentence
def attempt_restarts(attempt: int, taken_at: str, size: int) -> str:
    taken = datetime.fromisoformat(taken_at).astimezone(UTC)
    return f"Attempt {attempt} restarts from the checkpoint of {taken:%d %b %H:%M:%S} UTC, {size / 2**20:,.1f} MiB."


@sentence
def container_lost(container: str, node: str, reason: str) -> str:
    return f"The container on {node} was lost."


@sentence
def attempt_stopping(attempt: int, reason: str, resumable: bool) -> str:
    why = STOP_REASONS.get(reason, reason)
    if reason == "preempted":
        why = f"to make room for others; it restarts {restart_point(resumable)} later"
    return f"Attempt {attempt} was asked to stop: {why}."


@sentence
def attempt_ended(attempt: int, outcome: str, cause: Mapping[str, Any] | None) -> str:
    why = f" {explain_cause(cause)['title']}." if cause else ""
    return f"Attempt {attempt} ended: {OUTCOMES.get(outcome, outcome)}.{why}"


@sentence
def outputs_not_sent(complaint: Any) -> str:
    return nested_sentence(complaint)


# --- running jobs ------------------------------------------------------------------------------------------------


@sentence
def job_resized(before: int, after: int, cpu_slots: bool) -> str:
    return f"{before} → {devices(after, cpu_slots)}"


@sentence
def job_moving(nodes: Sequence[str]) -> str:
    return f"It leaves {', '.join(nodes)} for other nodes while it runs, because of a drain."


@sentence
def driver_moved(container: str, node: str) -> str:
    return f"The driver moved to {node}; the ranks keep training."


@sentence
def gpus_idle(attempt: int, percent: int, seconds: int, held_next: bool) -> str:
    then = " If it stays so, the job is put on hold." if held_next else ""
    return f"Its GPUs have done less than {percent} % for {duration(seconds)}.{then}"


@sentence
def job_held_for_idle_gpus(seconds: int) -> str:
    return f"Put on hold by the lab's rule: its GPUs were idle for {duration(seconds)}."


@sentence
def attempt_silent(attempt: int, since: str, seconds: int, ranks: Sequence[Sequence[str]]) -> str:
    return f"{silence(seconds, ranks)} It is not stopped for this."


def silence(seconds: float, ranks: Sequence[Sequence[str]]) -> str:
    """Return the sentence for a silence: of the ranks with these labels and nodes, or of all ranks if there are none."""
    length = duration(seconds)
    if not ranks:
        return (
            f"No output for {length}: its worker processes (ranks) are alive, but no line of log, no metric and no "
            "checkpoint has come from them."
        )
    more = len(ranks) - MAX_NAMED_RANKS
    names = ", ".join(rank_on_node(*rank) for rank in ranks[:MAX_NAMED_RANKS])
    names += f" and {more} other{'s' * (more > 1)}" if more > 0 else ""
    verb = "has" if len(ranks) == 1 else "have"
    return f"Some of its worker processes are silent: {names} {verb} printed nothing for {length}. Others continue."


def rank_on_node(label: str, node: str) -> str:
    """Return how a rank is named: ``rank 3 on gpu-2``."""
    return f"{label} on {node}"


# --- jobs --------------------------------------------------------------------------------------------------------


@sentence
def job_state(state: str, again: bool, restarts: bool, resumable: bool) -> str:
    then = f", to restart {restart_point(resumable)}" if restarts else ""
    return f"The job {STATES.get(state, state)}{' again' if again else ''}{then}."


@sentence
def job_not_retried(first: int, second: int) -> str:
    return f"Attempts {first} and {second} failed in the same way within seconds, so it is not tried again."


def restart_point(resumable: bool) -> str:
    """Return from where a job restarts after a stop."""
    return "from its checkpoint" if resumable else "from the beginning"
