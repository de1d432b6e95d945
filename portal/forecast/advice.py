"""Advice for waiting jobs, for pages and scripts, and making the changes that it proposes."""

import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlencode

from django.core.cache import cache
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from portal.accounts.models import User
from portal.forecast import messages
from portal.forecast.changes import HelpfulChange, ProposedChange, find_helpful_changes, possible_changes
from portal.forecast.models import Forecast
from portal.forecast.services import policy_and_snapshot
from portal.jobs import dependencies, lifecycle, services
from portal.jobs.forms import UNITS
from portal.jobs.models import Job, JobState
from portal.jobs.spec import submission_of
from portal.projects.services import may_submit, role_of
from portal.refused import Refused
from portal.scheduler.cycle import in_units_of_lab
from portal.scheduler.job_history import History
from portal.scheduler.models import Cycle
from portal.scheduler.services import current_config
from portal.sentences import sentence_of
from portal.user_slots import BusyError, UserSlots
from scheduling import types
from scheduling.messages import Message
from scheduling.types import Policy, Snapshot

CACHE_SECONDS = 60
NO_LONGER_WAITING = sentence_of(messages.NoLongerWaiting())


@dataclass(frozen=True, slots=True)
class Advice:
    """A change that helps, as it is shown."""

    change: str
    message: dict[str, Any]
    starts_now: bool
    low_seconds: float | None
    high_seconds: float | None
    """None where the lengths of the jobs ahead are not known."""
    differs: dict[str, Any]
    """What the changed job asks for instead, by the names of the API."""
    form: str
    """The query that fills the form of a new job accordingly."""

    @property
    def sentence(self) -> str:
        return sentence_of(self.message)


@dataclass(frozen=True, slots=True)
class JobAdvice:
    """The advice for one job."""

    advice: tuple[Advice, ...] = ()
    about_to_start: bool = False
    message: dict[str, Any] | None = None
    """Why there is no advice; None when there is some."""

    @property
    def sentence(self) -> str:
        return sentence_of(self.message)


def advice_for(job: Job, user: User) -> JobAdvice:
    """Return what would help the job now.

    The result is cached until the next recorded scheduling cycle, at most a minute; each user has one computed at a time.
    """
    cycle = f"{current_config().pk}-{Cycle.objects.aggregate(last=Max('pk'))['last']}"
    key = f"forecast-advice-2-{job.pk}-{cycle}"
    kept = cache.get(key)
    if kept is None:
        try:
            with _advice_slots.hold(user.pk):
                kept = asdict(_compute_advice(job, cycle))
        except BusyError:
            return JobAdvice(message=messages.AdviceBusy().data())
        cache.set(key, kept, CACHE_SECONDS)
    return JobAdvice(tuple(Advice(**each) for each in kept["advice"]), kept["about_to_start"], kept["message"])


MAX_CONCURRENT_ADVICE = 2
"""Requests computed at once in this process: each takes seconds of processor time while a thousand jobs wait."""
_advice_slots = UserSlots(MAX_CONCURRENT_ADVICE)


class _LabStateCache:
    """The lab as the next cycle would see it, read once for all requests before that cycle."""

    def __init__(self) -> None:
        self._reading = threading.Lock()
        """Guards the history: only the first of several simultaneous readers uses it, and the others do not wait."""
        self._history = History()
        self._kept: tuple[str, float, Policy, Snapshot] | None = None
        """The cycle, until when it is valid, and what was read."""

    def get(self, cycle: str, job: Job) -> tuple[Policy, Snapshot, types.Job | None]:
        """Return the policy, the snapshot and the job in it (None when it does not wait). Raises ValueError."""
        if (kept := self._kept) is not None:
            of_cycle, until, policy, seen = kept
            if of_cycle == cycle and time.monotonic() < until and (view := _waiting_job(seen, job)) is not None:
                return policy, seen, view
        policy, seen = self._read()
        self._kept = cycle, time.monotonic() + CACHE_SECONDS, policy, seen
        return policy, seen, _waiting_job(seen, job)

    def _read(self) -> tuple[Policy, Snapshot]:
        if not self._reading.acquire(blocking=False):
            return policy_and_snapshot()
        try:
            return policy_and_snapshot(history=self._history)
        finally:
            self._reading.release()


_lab_state = _LabStateCache()


def _compute_advice(job: Job, cycle: str) -> JobAdvice:
    try:
        policy, seen, view = _lab_state.get(cycle, job)
    except ValueError:
        return JobAdvice(message=messages.SchedulerCannotDecide().data())
    if view is None and job.after_id and not job.ready_at:
        return JobAdvice(message=messages.AfterAnotherJob(job.after_id).data())
    if view is None:
        return JobAdvice(message=messages.NoLongerWaiting().data())
    answer = find_helpful_changes(policy, seen, view, possible_changes(job, view, seen))
    if answer.helpful:
        known = Forecast.objects.filter(job=job, lengths_known=True).exists()
        return JobAdvice(tuple(_advice(each, known, seen) for each in answer.helpful), answer.about_to_start)
    why = messages.AboutToStart() if answer.about_to_start else messages.NothingHelps(list(answer.tried))
    return JobAdvice((), answer.about_to_start, in_units_of_lab(why, seen).data())


def _waiting_job(seen: Snapshot, job: Job) -> types.Job | None:
    return next((each for each in seen.jobs if each.id == str(job.pk) and each.waiting), None)


def _advice(found: HelpfulChange, lengths_known: bool, seen: Snapshot) -> Advice:
    message = in_units_of_lab(found.message(lengths_known=lengths_known), seen)
    low, high = (found.low, found.high) if lengths_known or found.starts_now else (None, None)
    return Advice(
        found.change.key, message.data(), found.starts_now, low, high,
        _changed_fields(found.change), urlencode(_form_fields(found.change)),
    )  # fmt: skip


def _changed_fields(change: ProposedChange) -> dict[str, Any]:
    return {name: getattr(value, "key", value) for name, value in change.spec.items()}


def _form_fields(change: ProposedChange) -> Mapping[str, Any]:
    fields = _changed_fields(change)
    if "time_limit_seconds" in fields:
        seconds = fields.pop("time_limit_seconds")
        unit = next(unit for unit, _ in reversed(UNITS) if seconds % unit == 0)
        fields |= {"time_amount": seconds // unit, "time_unit": unit}
    return {name: "on" if value is True else value or "" for name, value in fields.items()}


# --- making a change ---------------------------------------------------------------------------------------------


def may_change(user: User, job: Job) -> bool:
    """Return whether the user may change the job: only its owner as a project member, and only before it has run.

    A job that has run has checkpoints, which the new job would not have.
    """
    return (
        job.submitted_by_id == user.pk
        and job.state == JobState.QUEUED
        and may_submit(role_of(user, job.project))
        and not job.attempts.exists()
    )


def make_change(user: User, job: Job, key: str) -> Job:
    """Cancel the job and submit it again with a change, in one transaction.

    The new job has the old one's time of submission, and with it the same place where the policy orders jobs by that.
    This cannot be used to get ahead: all changes that are proposed ask for less.
    """
    if job.submitted_by_id != user.pk:
        raise Refused("Only the user who submitted this job may change it. Duplicate it instead.", "forbidden")
    try:
        _, seen = policy_and_snapshot()
    except ValueError as error:
        raise Refused("The scheduler cannot decide at the moment. Try again later.", "conflict") from error
    view = _waiting_job(seen, job)
    if view is None:
        raise Refused(NO_LONGER_WAITING, "conflict")
    found = next((each for each in possible_changes(job, view, seen) if each.key == key), None)
    if found is None:
        raise Refused("This change is not available for the job. Request the list of changes again.", field="change")
    with transaction.atomic():
        return _requeue(user, lifecycle.get_locked(job.pk), found, in_units_of_lab(found.message, seen))


def _requeue(user: User, job: Job, found: ProposedChange, message: Message) -> Job:
    if job.state != JobState.QUEUED or job.intent != Job.Intent.RUN:
        raise Refused(NO_LONGER_WAITING, "conflict")
    if job.attempts.exists():
        raise Refused(
            "This job has run before, and a new one would not have its checkpoints. Duplicate it instead.", "conflict"
        )
    asked = replace(submission_of(job), **found.spec)
    deadline = getattr(asked, "deadline", None)
    if deadline is not None and deadline <= timezone.now():
        asked = replace(asked, deadline=None)
    services.cancel(user, job)
    changed = services.submit(user, job.project, asked, copied_from=job)
    changed.submitted_at, changed.ready_at = job.submitted_at, job.ready_at
    changed.save(update_fields=["submitted_at", "ready_at"])
    dependencies.move_children(job, changed)
    job.schedule_runs.update(job=changed)
    lifecycle.record(changed, messages.Requeued(job.pk, message), user)
    return changed
