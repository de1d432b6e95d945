"""Jobs that start after another one: *children* of a *parent*, which must succeed first.

A child waits, unknown to policies, until ``ready_at`` is set; its place in the queue counts from then. Everything is in the
rows of the two jobs, so the next cycle of any scheduler continues where the last one ended. A child names an older job and
never another one later, except for the copy that replaces its parent, so there are no circles.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from django.db import DatabaseError, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from portal.accounts.models import User
from portal.jobs import events, lifecycle
from portal.jobs.models import FINISHED_STATES, WAITING_STATES, Container, Job, JobState
from portal.jobs.spec import Submission
from portal.projects.models import Membership, Project
from portal.refused import Refused
from portal.wake import wake_scheduler
from scheduling.messages import Message

logger = logging.getLogger(__name__)

MAX_SETTLED = 200
"""Children that one cycle settles; the next one takes the others. Each leaves the set, so none is forgotten."""
MAX_OFFERED = 50
NO_ACCESS, OUTPUTS_LOST, NOT_SUCCEEDED = "no_access", "outputs_lost", "not_succeeded"
"""Reasons for which a child is cancelled, in addition to the state in which its parent ended. The third stands for that
state where the parent belongs to another project: readers of the child may not see it."""


# --- why a child waits -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WaitsForJob(Message):
    code: ClassVar[str] = "waits_for_job"
    after: int
    state: str
    """Of the job ``after``; empty where readers of the child may not see that one."""


@dataclass(frozen=True)
class WaitsForOutputs(Message):
    """The job ``after`` has succeeded, and a node has not sent all of its outputs yet."""

    code: ClassVar[str] = "waits_for_outputs"
    after: int
    node: str
    """Empty where readers of the child may not see the job ``after``."""


WAITING_CODES = frozenset({WaitsForJob.code, WaitsForOutputs.code})


# --- submit ------------------------------------------------------------------------------------------------------


def offered_to(user: User, project: Project) -> QuerySet[Job]:
    """Return the jobs after which a job of a project may start: those of the project, and the user's own that they may see."""
    return Job.objects.visible_to(user).filter(Q(project=project) | Q(submitted_by=user))


def proposals(project: Project) -> list[Job]:
    """Return the newest jobs of a project after which another one can start, for the form."""
    could = Job.objects.filter(project=project, deleted_at=None).exclude(
        state__in=(JobState.FAILED, JobState.CANCELLED)
    )
    return list(could.only("name", "state").order_by("-pk")[:MAX_OFFERED])


def check(user: User, project: Project, asked: Submission) -> None:
    """Raise Refused for a job that could never start after the one that it names."""
    if asked.after is None:
        if asked.use_outputs:
            raise Refused("Choose the job whose outputs it uses, or leave this off.", field="use_outputs")
        return
    parent = offered_to(user, project).filter(pk=asked.after).first()
    if parent is None:
        raise Refused(
            f"There is no job {asked.after} in this project, and no other of yours. Choose another, or leave it empty.",
            field="after",
        )
    if parent.state in (JobState.FAILED, JobState.CANCELLED) or parent.intent == Job.Intent.CANCEL:
        ended = "failed" if parent.state == JobState.FAILED else "was cancelled"
        raise Refused(
            f"Job {parent.pk} {ended}, so no job can start after it. Choose another, or leave it empty.", field="after"
        )


# --- the scheduler's part ----------------------------------------------------------------------------------------


def unready() -> QuerySet[Job]:
    """Return the jobs that wait for another one, also those on hold."""
    rows = Job.objects.filter(state__in=WAITING_STATES, after__isnull=False, ready_at=None)
    return rows.exclude(intent=Job.Intent.CANCEL)


def settle(now: datetime | None = None) -> int:
    """Queue the children whose parent has succeeded, cancel those that can never start; return how many. May be repeated."""
    now = now or timezone.now()
    waiting = Job.objects.filter(state__in=WAITING_STATES, after__isnull=False).exclude(intent=Job.Intent.CANCEL)
    parent_ended = Q(ready_at=None, after__state__in=FINISHED_STATES) & ~_outputs_coming()
    due = waiting.filter(_without_access() | parent_ended).order_by("pk").values_list("pk", flat=True)[:MAX_SETTLED]
    for pk in due:
        try:
            _settle(pk, now)
        except DatabaseError:
            # An error of one job must not delay the others; the next cycle tries again.
            logger.exception("settling job %s, which starts after another", pk)
    return len(due)


def _without_access() -> Q:
    """Return the condition for children whose submitter may no longer see the parent that they wait for, or use."""
    member = Membership.objects.filter(project=OuterRef("after__project"), user=OuterRef("submitted_by"))
    is_admin = Q(submitted_by__is_active=True, submitted_by__is_staff=True)
    return (Q(ready_at=None) | Q(use_outputs=True)) & ~is_admin & ~Q(Exists(member))


def _uncollected() -> QuerySet[Container]:
    """Return the containers whose outputs have not all arrived."""
    rows = Container.objects.filter(role=Container.Role.HOST, collected_at=None, running_at__isnull=False)
    return rows.exclude(exit_reason="lost")


def _outputs_coming() -> Q:
    """Return the condition for children whose parent has succeeded and whose nodes will still send outputs."""
    coming = _uncollected().filter(attempt__job=OuterRef("after"), node__removed_at=None)
    return Q(Exists(coming), use_outputs=True, after__state=JobState.SUCCEEDED)


@transaction.atomic
def _settle(pk: int, now: datetime) -> None:
    row = lifecycle.get_locked(pk)
    parent = row.after
    if parent is None or row.state not in WAITING_STATES or row.intent == Job.Intent.CANCEL:
        return None
    if not may_use(row, parent):
        return _cancel(row, NO_ACCESS)
    if row.ready_at is not None:
        return None
    if parent.state != JobState.SUCCEEDED:
        return _cancel(row, parent.state) if parent.state in FINISHED_STATES else None
    if row.use_outputs and _uncollected().filter(attempt__job=parent).exists():
        removed = _uncollected().filter(attempt__job=parent, node__removed_at__isnull=False).exists()
        return _cancel(row, OUTPUTS_LOST) if removed else None
    row.ready_at = max(now, row.submitted_at)
    row.save(update_fields=["ready_at"])
    lifecycle.record(row, events.Ready(parent.pk))
    wake_scheduler()
    return None


def may_use(child: Job, parent: Job) -> bool:
    """Return whether the submitter of a child may see its parent now."""
    return Job.objects.visible_to(child.submitted_by).filter(pk=parent.pk).exists()


def _cancel(row: Job, why: str) -> None:
    """Cancel a child. Its number of a job that its submitter may no longer see is not repeated."""
    row.intent = Job.Intent.CANCEL
    row.save(update_fields=["intent"])
    after = None if why == NO_ACCESS else row.after_id
    known = why in (NO_ACCESS, OUTPUTS_LOST) or row.after is None or row.after.project_id == row.project_id
    lifecycle.record(row, events.CannotStartAfter(after, str(why) if known else NOT_SUCCEEDED, row.use_outputs))
    lifecycle.settle(row)


def reasons() -> Mapping[int, WaitsForJob | WaitsForOutputs]:
    """Return why each child that is not on hold waits for its parent, in two queries.

    The reasons are for all who may see the child, so they tell nothing about a parent in another project.
    """
    rows = unready().filter(state=JobState.QUEUED, intent=Job.Intent.RUN)
    found = dict[int, WaitsForJob | WaitsForOutputs]()
    sending: dict[int, dict[int, bool]] = {}
    same_project = Q(project=F("after__project"))
    fields = rows.annotate(same=same_project).values_list("pk", "after", "after__state", "use_outputs", "same")
    for pk, after, state, uses_outputs, same in fields:
        if after is None:
            continue  # another process has changed it
        found[pk] = WaitsForJob(after, state if same else "")
        if state == JobState.SUCCEEDED and uses_outputs:
            sending.setdefault(after, {})[pk] = same
    if sending:
        parts = _uncollected().filter(attempt__job__in=sending).order_by("pk")
        for after, node in parts.values_list("attempt__job", "node__name"):
            found |= {pk: WaitsForOutputs(after, node if same else "") for pk, same in sending[after].items()}
    return found


def move_children(parent: Job, replacement: Job) -> None:
    """Let the jobs that wait for one start after the copy that replaces it."""
    unready().filter(after=parent).update(after=replacement)
