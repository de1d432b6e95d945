"""A user leaves the lab: what is theirs, and what becomes of it when their access ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.contrib.auth.models import Group
from django.db import transaction
from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from portal.accounts.models import ApiToken, User
from portal.accounts.services import live_tokens, open_invites_of, set_active
from portal.cluster import reservations as calendar
from portal.cluster.models import Reservation
from portal.jobs import services
from portal.jobs.models import UNFINISHED_STATES, WAITING_STATES, Job
from portal.jobs.states import JobState
from portal.jobs.stop_costs import stop_costs
from portal.projects.git.ending import end_open
from portal.projects.git.models import GitFetch
from portal.projects.models import Membership, Project
from portal.projects.services import hand_over, owned_alone
from portal.refused import Refused
from portal.sentences import agents
from portal.sentences.stops import cancel_words


@dataclass(frozen=True, slots=True)
class Belongings:
    """What a user has in the portal that others may need, or that goes on without them."""

    waiting: Sequence[Job]
    running: Sequence[tuple[Job, str]]
    """Each with what is lost when it is cancelled now; "" before its attempt has begun."""
    owned_alone: Sequence[Project]
    """Those that would have no active owner; each has ``others``, the number of its other active members."""
    other_projects: Sequence[Membership]
    tokens: Sequence[ApiToken]
    open_invites: int
    """The invitations of an admin that can still be used."""
    reservations: Sequence[Reservation]
    groups: Sequence[Group]


@dataclass(frozen=True, slots=True)
class Choices:
    """What an admin decided about the belongings of a user."""

    cancel_waiting: bool = True
    cancel_running: bool = False
    owners: Mapping[int, User] = field(default_factory=dict)
    """The new owners of projects, by the number of the project; others are left as they are."""
    end_reservations: bool = True
    reservations_to: User | None = None
    """Who gets the reservations; they do not end then."""


@dataclass(frozen=True, slots=True)
class Departure:
    """What was done."""

    tokens: int
    waiting: int
    running: int
    projects: int
    reservations: int


def belongings_of(user: User, now: datetime) -> Belongings:
    """Return what a user has, in a constant number of queries."""
    jobs = list(_unfinished(user).select_related("project"))
    running = [job for job in jobs if job.state == JobState.RUNNING]
    costs = stop_costs([job.pk for job in running], now)
    active_others = Count("memberships", Q(memberships__user__is_active=True) & ~Q(memberships__user=user))
    alone = list(owned_alone(user).annotate(others=active_others).order_by("name", "pk"))
    memberships = (
        Membership.objects.filter(user=user, project__deleted_at=None)
        .exclude(project__in=alone)
        .select_related("project")
    )
    return Belongings(
        waiting=[job for job in jobs if job.state in WAITING_STATES],
        running=[(job, cancel_words(costs[job.pk]) if job.pk in costs else "") for job in running],
        owned_alone=alone,
        other_projects=list(memberships.order_by("project__name", "project")),
        tokens=list(live_tokens(user)),
        open_invites=open_invites_of(user).count(),
        reservations=list(calendar.reservations_of(user, now)),
        groups=list(user.groups.order_by("name")),
    )


def _unfinished(user: User) -> QuerySet[Job]:
    jobs = Job.objects.filter(submitted_by=user, state__in=UNFINISHED_STATES)
    return jobs.exclude(intent=Job.Intent.CANCEL).order_by("pk")


def deactivate(actor: User, user: User, choices: Choices) -> Departure:
    """End a user's access, and do with their jobs, projects and reservations what was chosen, all or nothing.

    Containers stop afterwards, as after every cancellation. Raises Refused, as for the last admin.
    """
    with transaction.atomic():
        tokens = set_active(actor, user, False)
        end_open(GitFetch.objects.filter(requested_by=user), agents.git_failures.RequesterLeft(user.username))
        waiting = running = 0
        for job in _unfinished(user).select_related("project"):
            if choices.cancel_running if job.state == JobState.RUNNING else choices.cancel_waiting:
                done = _cancel(actor, job)
                running += done and job.state == JobState.RUNNING
                waiting += done and job.state != JobState.RUNNING
        alone = [project for project in owned_alone(user) if project.pk in choices.owners]
        for project in alone:
            hand_over(actor, project, user, choices.owners[project.pk])
        return Departure(tokens, waiting, running, len(alone), _settle_reservations(actor, user, choices))


def _cancel(actor: User, job: Job) -> bool:
    """Cancel a job; one that has ended in the meantime needs no cancelling."""
    try:
        services.cancel(actor, job)
    except Refused:
        return False
    return True


def _settle_reservations(actor: User, user: User, choices: Choices) -> int:
    if not choices.end_reservations and choices.reservations_to is None:
        return 0
    rows = list(calendar.reservations_of(user, timezone.now()))
    for row in rows:
        if choices.reservations_to is not None:
            calendar.hand_over(actor, user, row, choices.reservations_to)
        else:
            calendar.end_for(actor, user, row)
    return len(rows)
