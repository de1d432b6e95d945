"""When a job whose code has failed is tried again: after a pause, and not if it fails in the same way within seconds."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.db.models import Count, Max

from portal.jobs.models import Attempt, JobState, Outcome
from scheduling.messages import Message

FIRST_PAUSE_SECONDS = 10
MAX_PAUSE_SECONDS = 600
"""The pause doubles with each failure."""
QUICK_SECONDS = 60
"""An attempt that fails sooner has hardly begun: a second one that fails for the same cause shows that another would too."""


@dataclass(frozen=True)
class RetryPause(Message):
    """The reason of a job that waits for its next attempt."""

    code: ClassVar[str] = "retry_pause"
    failures: int
    seconds: int


def pause_seconds(failures: int) -> int:
    """Return how long a job waits after so many attempts whose code failed."""
    return min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10)) if failures > 0 else 0


def pauses(now: datetime) -> dict[int, RetryPause]:
    """Return the jobs that wait for their next attempt at ``now``, with the reason, by the job's number."""
    failed = Attempt.objects.filter(job__state=JobState.QUEUED, job__retries__gt=0, outcome=Outcome.FAILED)
    found = {}
    for job, failures, ended in failed.values_list("job").annotate(n=Count("id"), ended=Max("ended_at")):
        seconds = pause_seconds(failures)
        if now < ended + timedelta(seconds=seconds):
            found[job] = RetryPause(failures, seconds)
    return found


def fail_alike(attempts: Sequence[Attempt]) -> bool:
    """Return whether the last two attempts failed for the same cause within seconds; ``attempts`` are in order."""
    last = attempts[-2:]
    if len(last) < 2 or any(attempt.outcome != Outcome.FAILED or not _was_quick(attempt) for attempt in last):
        return False
    first, second = (_comparable(attempt.cause) for attempt in last)
    return first is not None and first == second


def _was_quick(attempt: Attempt) -> bool:
    since = attempt.started_at or attempt.created_at
    return attempt.ended_at is not None and attempt.ended_at - since < timedelta(seconds=QUICK_SECONDS)


def _comparable(cause: Mapping[str, Any]) -> tuple[str, Any, str] | None:
    """Return what two attempts with the same failure have in common; numbers in the detail may differ, such as addresses."""
    if not cause or "code" not in cause:
        return None
    return cause["code"], cause.get("parameters"), re.sub(r"0x[0-9a-f]+|\d+", "#", str(cause.get("detail", "")))
