"""What people are notified of, and the names of the events that programs receive."""

from collections.abc import Sequence
from dataclasses import dataclass

ENDED, FAILED, PREEMPTED, STARTED, IDLE, SILENT = "ended", "failed", "preempted", "started", "idle", "silent"
MORE_TIME, TIME_ASKED = "more_time", "time_asked"
SCHEDULE = "schedule"
ALARM, TROUBLE, ACCOUNT, EVENT, TEST = "alarm", "trouble", "account", "event", "test"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of notice that a person chooses for each of their channels."""

    key: str
    title: str
    help: str
    for_admins: bool = False


KINDS = (
    Kind(ENDED, "Job ended", "Your job succeeded, or another person cancelled it or put it on hold."),
    Kind(FAILED, "Job failed", "With the cause and the last lines of its log."),
    Kind(PREEMPTED, "Job preempted", "It was stopped to make room or because its node is drained, and restarts later."),
    Kind(STARTED, "End of a long wait", "Your job started after it had waited for long."),
    Kind(IDLE, "Idle GPUs", "Your job holds GPUs that do nothing."),
    Kind(SILENT, "Silent job", "Your job, or some of its ranks, has printed nothing for long."),
    Kind(MORE_TIME, "More time", "An admin granted or refused the time that you asked for."),
    Kind(TIME_ASKED, "Requests for more time", "A user asks for a longer time limit.", for_admins=True),
    Kind(SCHEDULE, "Schedules", "The job of a schedule was refused, or a schedule was paused."),
    Kind(ALARM, "Alarms of the lab", "Nodes that no longer report, and GPUs in quarantine.", for_admins=True),
)
BY_KEY = {kind.key: kind for kind in KINDS}
FOR_ADMINS = frozenset(kind.key for kind in KINDS if kind.for_admins)
OF_JOBS = (ENDED, FAILED, PREEMPTED, STARTED, IDLE, SILENT)


def kinds_for(is_admin: bool) -> list[Kind]:
    """Return the kinds that a person can choose."""
    return [kind for kind in KINDS if is_admin or not kind.for_admins]


EVENTS: dict[str, str] = {
    "job.submitted": "A job was submitted.",
    "job.started": "An attempt of a job started.",
    "job.preempted": "An attempt was asked to stop to make room, or because its node is drained.",
    "job.idle": "The GPUs of a job do nothing.",
    "job.silent": "A job or some of its ranks have printed nothing for long.",
    "job.held": "A job was put on hold.",
    "job.ended": "A job succeeded, failed or was cancelled.",
    "job.succeeded": "A job succeeded.",
    "job.failed": "A job failed.",
    "job.cancelled": "A job was cancelled.",
}
"""The events of the API's webhooks. They are part of the API: names stay."""
ENDS = frozenset({"job.succeeded", "job.failed", "job.cancelled"})


def event_for(event: str, chosen: Sequence[str]) -> str:
    """Return the name under which a webhook with these events receives one; empty if it does not.

    An end has two names. A webhook with both receives it once, under the more precise one.
    """
    if event in chosen:
        return event
    return "job.ended" if event in ENDS and "job.ended" in chosen else ""
