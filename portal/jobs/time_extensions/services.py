"""Ask for more time for a job, withdraw that, and decide it as an admin.

A decision and the new time limit are written in one transaction, under the lock of the job. Each action may be repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Sum
from django.urls import reverse
from django.utils import timezone

from portal.accounts.audit import audit
from portal.accounts.models import LabSettings, User
from portal.accounts.outbox import notify
from portal.accounts.services import active_admins
from portal.jobs import events, lifecycle
from portal.jobs.models import FINISHED_STATES, WAITING_STATES, Job, StopReason
from portal.jobs.permissions import require_may_act
from portal.jobs.spec import limits_of
from portal.jobs.time_extensions.messages import TimeExtensionAsked, TimeExtensionDecided
from portal.jobs.time_extensions.models import MAX_TEXT, TimeExtension, TimeExtensionQuerySet
from portal.names import is_unstorable
from portal.refused import Refused
from portal.sentences.events import STATES
from portal.ui import duration
from portal.wake import wake_scheduler

MIN_SECONDS = 60
HOUR = 3600
NOTICE_KIND, ADMINS_NOTICE_KIND = "more_time", "time_asked"
"""The kinds of ``portal.notifications.kinds``: for who asked, and for admins."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Which waiting jobs would start later, as it was computed before the request is stored."""

    jobs: Sequence[tuple[int, int | None]]
    """Each with the seconds, or None if it would no longer start within the time that was simulated."""
    at: datetime

    def as_json(self) -> list[list[int | None]]:
        return [list(each) for each in self.jobs]


# --- asking ------------------------------------------------------------------------------------------------------


def max_more_seconds(job: Job) -> int:
    """Return how much more time a job may have at most: time limits of the lab have a maximum."""
    return max(0, limits_of("time_limit_seconds")[1] - job.time_limit_seconds)


def may_ask_for(job: Job) -> bool:
    """Return whether requests for a job make sense: it has run and has not ended."""
    return not why_not_askable(job)


def why_not_askable(job: Job) -> str:
    """Return why no more time can be asked for a job; empty if it can."""
    try:
        _require_askable(job)
    except Refused as refusal:
        return refusal.message
    return ""


def check(job: Job, seconds: int) -> None:
    """Raise Refused for more time that the job cannot have."""
    _require_askable(job)
    if seconds < MIN_SECONDS:
        raise Refused("Ask for at least a minute.", field="seconds")
    longest, possible = duration(limits_of("time_limit_seconds")[1]), max_more_seconds(job)
    if possible < MIN_SECONDS:
        raise Refused(f"The job has the longest time limit that the lab allows, {longest}.", field="seconds")
    if seconds > possible:
        raise Refused(
            f"A time limit can be at most {longest}, and this job has {duration(job.time_limit_seconds)}: "
            f"ask for at most {duration(possible)} more.",
            field="seconds",
        )


def _require_askable(job: Job) -> None:
    """Raise Refused for a job that has ended or is about to, and for one whose time limit can be changed without asking."""
    if job.state in FINISHED_STATES:
        raise Refused(f"This job {STATES[job.state]}. Duplicate it with a longer time limit instead.", "conflict")
    if job.intent == Job.Intent.CANCEL:
        raise Refused("This job is being cancelled, so its time limit no longer matters.", "conflict")
    if job.state in WAITING_STATES and job.started_at is None:
        raise Refused("This job has not run yet: change its time limit on its page, under Edit.", "conflict")
    if job.attempts.filter(ended_at=None, stop_reason=StopReason.TIMED_OUT).exists():
        raise Refused("This job has reached its time limit and is being stopped.", "conflict")


def ask(user: User, job: Job, seconds: int, reason: str = "", delays: Delays | None = None) -> TimeExtension:
    """Ask for more time; the rule of the lab may grant it at once. Raises Refused.

    ``delays`` is what the user was shown, for the admin who decides.
    """
    require_may_act(user, job)
    text = _checked_text(reason, "reason")
    with transaction.atomic():
        row = lifecycle.get_locked(job.pk)
        check(row, seconds)
        if TimeExtension.objects.filter(job=row, status=TimeExtension.Status.ASKED).exists():
            raise Refused(
                "There is a request for this job already that no admin has decided. Withdraw it to make another.",
                "conflict",
            )
        request = TimeExtension(
            job=row, asked_by=user, seconds=seconds, reason=text,
            delays=delays.as_json() if delays else None, delays_at=delays.at if delays else None,
        )  # fmt: skip
        if seconds <= seconds_left_of_rule(row):
            request.status, request.by_rule, request.decided_at = TimeExtension.Status.GRANTED, True, timezone.now()
            request.save()
            _raise_limit(row, request, None)
        else:
            request.save()
            lifecycle.record(row, events.TimeAsked(str(user), seconds, text), user)
            _notify_admins(request)
    return request


def seconds_left_of_rule(job: Job) -> int:
    """Return how much of what the lab grants without asking the job has not used. Two queries."""
    granted = TimeExtension.objects.filter(job=job, status=TimeExtension.Status.GRANTED, by_rule=True)
    used = granted.aggregate(sum=Sum("seconds"))["sum"] or 0
    return max(0, LabSettings.current().hours_granted_by_rule * HOUR - used)


@transaction.atomic
def withdraw(user: User, request: TimeExtension) -> TimeExtension:
    """Withdraw a request that no admin has decided: who made it, and others who may act on the job."""
    require_may_act(user, request.job)
    job, row = _locked(request)
    if row.status == TimeExtension.Status.WITHDRAWN:
        return row
    _require_undecided(row)
    _decide(row, TimeExtension.Status.WITHDRAWN, None, "")
    lifecycle.record(job, events.TimeWithdrawn(str(user), row.seconds), user)
    return row


# --- deciding ----------------------------------------------------------------------------------------------------


def requests_seen_by(user: User) -> TimeExtensionQuerySet:
    """Return the requests of jobs that a user may see, the newest first."""
    rows: TimeExtensionQuerySet = TimeExtension.objects.all()
    rows = rows.select_related("job__project", "job__submitted_by", "asked_by", "decided_by")
    return rows.filter(job__in=Job.objects.visible_to(user)) if not user.is_admin else rows


def _require_admin(user: User) -> None:
    if not user.is_admin:
        raise Refused("Only admins decide about more time.", "forbidden")


@transaction.atomic
def grant(admin: User, request: TimeExtension, answer: str = "") -> TimeExtension:
    """Raise the time limit of the job as it was asked for. One that is granted already stays as it is."""
    _require_admin(admin)
    text = _checked_text(answer, "answer")
    job, row = _locked(request)
    if row.status == TimeExtension.Status.GRANTED:
        return row
    _require_undecided(row)
    check(job, row.seconds)
    before = job.time_limit_seconds
    _decide(row, TimeExtension.Status.GRANTED, admin, text)
    _raise_limit(job, row, admin)
    after = job.time_limit_seconds
    audit(admin, "job.time_granted", f"job {job.pk}", {"time_limit_seconds": before}, {"time_limit_seconds": after})
    _notify_asker(row, job, admin)
    return row


@transaction.atomic
def refuse(admin: User, request: TimeExtension, answer: str = "") -> TimeExtension:
    """Refuse more time. The job keeps its time limit, and its owner may ask again."""
    _require_admin(admin)
    text = _checked_text(answer, "answer")
    job, row = _locked(request)
    if row.status == TimeExtension.Status.REFUSED:
        return row
    _require_undecided(row)
    _decide(row, TimeExtension.Status.REFUSED, admin, text)
    lifecycle.record(job, events.TimeRefused(str(admin), row.seconds, text), admin)
    audit(admin, "job.time_refused", f"job {job.pk}", after={"seconds": row.seconds})
    _notify_asker(row, job, admin)
    return row


def _locked(request: TimeExtension) -> tuple[Job, TimeExtension]:
    """Return the job and the request, both locked until the transaction ends."""
    job = lifecycle.get_locked(request.job_id)
    row = TimeExtension.objects.select_for_update(no_key=True, of=("self",)).select_related("asked_by")
    found = row.get(pk=request.pk)
    found.job = job
    return job, found


def _require_undecided(row: TimeExtension) -> None:
    if row.status != TimeExtension.Status.ASKED:
        who = f" by {row.decided_by}" if row.decided_by else ""
        raise Refused(f"This request was {row.get_status_display()}{who} in the meantime.", "conflict")


def _decide(row: TimeExtension, status: TimeExtension.Status, by: User | None, answer: str) -> None:
    row.status, row.decided_by, row.decided_at, row.answer = status, by, timezone.now(), answer
    row.save(update_fields=["status", "decided_by", "decided_at", "answer"])


def _raise_limit(job: Job, request: TimeExtension, admin: User | None) -> None:
    job.time_limit_seconds += request.seconds
    job.save(update_fields=["time_limit_seconds"])
    granted = events.TimeGranted(
        str(admin) if admin else "", request.seconds, job.time_limit_seconds, str(request.asked_by)
    )
    lifecycle.record(job, granted, admin or request.asked_by)
    wake_scheduler()


def _checked_text(text: str, field: str) -> str:
    text = text.strip()
    if len(text) > MAX_TEXT:
        raise Refused(f"At most {MAX_TEXT:,} characters.", field=field)
    if is_unstorable(text):
        raise Refused("This text has characters that cannot be stored.", field=field)
    return text


# --- notices -----------------------------------------------------------------------------------------------------


def _notify_admins(request: TimeExtension) -> None:
    job, user = request.job, request.asked_by
    admins = active_admins().exclude(pk=user.pk)
    content = TimeExtensionAsked(job.pk, job.name, job.project.name, str(user), request.seconds, request.reason)
    notify(admins, ADMINS_NOTICE_KIND, content, reverse("forecast:time-requests"))


def _notify_asker(request: TimeExtension, job: Job, admin: User) -> None:
    """Notify who asked, unless they may no longer see the job or have decided themselves."""
    user = request.asked_by
    if user == admin or not Job.objects.visible_to(user).filter(pk=job.pk).exists():
        return
    granted = request.status == TimeExtension.Status.GRANTED
    content = TimeExtensionDecided(
        job.pk, job.name, job.project.name, str(admin), request.seconds, granted, request.answer
    )
    notify([user], NOTICE_KIND, content, reverse("jobs:detail", args=[job.pk]))
