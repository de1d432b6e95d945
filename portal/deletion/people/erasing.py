"""Erasing a person: what must be settled before, what is removed at once, and what follows in the background.

The row of the user stays under a pseudonym, so that GPU-hours, histories and the audit log keep their sums and their order.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from axes.models import AccessAttempt, AccessFailureLog, AccessLog
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.models import Session
from django.db import DatabaseError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.accounts.audit import audit
from portal.accounts.models import ApiToken, Invite, Limit, ListColumns, SavedView, User, new_session_salt
from portal.accounts.services import people
from portal.cluster import reservations
from portal.cluster.models import Reservation
from portal.deletion.models import Erasure
from portal.deletion.people import renaming
from portal.deletion.words import MAX_NAMED, about_jobs, first_of, sentence
from portal.home.models import SeenFailures
from portal.jobs import trash
from portal.jobs.models import UNFINISHED_STATES, IdempotencyKey, Job, TimeExtension
from portal.notifications.models import Channel, Delivery, MutedProject, Notice, Preferences
from portal.projects.deletable import put_in_trash
from portal.projects.models import GitSource, Membership
from portal.projects.services import owned_alone
from portal.refused import Refused
from portal.schedules.models import Schedule
from portal.secrets.models import Secret

logger = logging.getLogger(__name__)

BATCH = 200


@dataclass(frozen=True, slots=True)
class Preview:
    """What hinders an erasure, and what it removes."""

    hindrances: list[str]
    """Sentences; empty if the person can be erased."""
    jobs: int
    kept: list[int]
    """The first of the kept jobs, which stay in any case."""
    kept_count: int
    followed: int
    """Jobs after which another one still waits to start: they stay too."""
    projects: int
    tokens: int
    secrets: int
    schedules: int
    channels: int
    notices: int


def require_may_erase(actor: User | None, user: User) -> None:
    """Raise Refused unless the actor is an admin (None: the command line) and the user is a person other than them."""
    if actor is not None and not actor.is_admin:
        raise Refused("Only admins erase people.", "forbidden")
    if actor is not None and actor.pk == user.pk:
        raise Refused("You cannot erase yourself. Ask another admin to do it.", "conflict")
    if not people().filter(pk=user.pk).exists():
        raise Refused(f"{user} is not a person: it owns the examples of the portal.", "conflict")


def preview_of(user: User) -> Preview:
    """Return what hinders the erasure of a person, and what it removes, in a constant number of queries."""
    jobs = Job.objects.filter(submitted_by=user, erased_at=None)
    kept = jobs.filter(kept=True)
    return Preview(
        hindrances=_hindrances(user),
        jobs=jobs.count(),
        kept=list(kept.order_by("pk").values_list("pk", flat=True)[:MAX_NAMED]),
        kept_count=kept.count(),
        followed=jobs.filter(_is_followed()).distinct().count(),
        projects=Membership.objects.filter(user=user).count(),
        tokens=ApiToken.objects.filter(user=user).count(),
        secrets=Secret.objects.filter(user=user).count(),
        schedules=Schedule.objects.filter(owner=user).count(),
        channels=Channel.objects.filter(owner=user, project=None).count(),
        notices=Notice.objects.filter(user=user).count(),
    )


def _hindrances(user: User) -> list[str]:
    found = []
    if user.is_active:
        found.append(
            f"{user} can still sign in. Deactivate them first: that page ends their jobs, passes on their projects and "
            "ends their reservations."
        )
    numbers, count = first_of(Job.objects.filter(submitted_by=user, state__in=UNFINISHED_STATES))
    if count:
        one, many = "has not ended: wait, or cancel it", "have not ended: wait, or cancel them"
        found.append(sentence(about_jobs(numbers, count, one, many)))
    for project in owned_alone(user).order_by("name")[:MAX_NAMED]:
        found.append(f"No one else owns the project “{project.name}”. Make another member an owner, or delete it.")
    if count := reservations.reservations_of(user, timezone.now()).count():
        found.append(
            "An active or coming reservation names them: end it, or hand it over."
            if count == 1
            else f"{count} active or coming reservations name them: end them, or hand them over."
        )
    return found


def _is_followed() -> Q:
    return Q(dependents__state__in=UNFINISHED_STATES)


def start(actor: User | None, user: User, typed: str, *, delete_jobs: bool) -> Erasure:
    """Erase a person: access and belongings at once, the rest by ``go_on``. Raises Refused with what must be settled before."""
    require_may_erase(actor, user)
    with transaction.atomic():
        row = User.objects.select_for_update(of=("self",)).get(pk=user.pk)
        if (erasure := Erasure.objects.filter(user=row).first()) is not None:
            return erasure
        if typed.strip() != row.username:
            raise Refused("Type the user name exactly as it is.", field="name")
        if problems := _hindrances(row):
            raise Refused(" ".join(problems), "conflict")
        names = [name for name in (row.username, row.email) if name]
        erasure = Erasure.objects.create(user=row, by=actor, delete_jobs=delete_jobs, names=names, step="waiting")
        _remove_belongings(row)
        _make_anonymous(row, erasure.pseudonym)
        audit(actor, "user.erase", f"user {row}", after={"delete_jobs": delete_jobs})
    return erasure


def _make_anonymous(row: User, pseudonym: str) -> None:
    """Take all that is personal out of the row of a user."""
    row.username, row.email, row.first_name, row.last_name = pseudonym, "", "", ""
    row.is_active = row.is_staff = row.is_superuser = False
    row.last_login, row.date_joined, row.session_salt = None, timezone.now(), new_session_salt()
    row.set_unusable_password()
    row.save()
    row.groups.clear()
    row.user_permissions.clear()


def _remove_belongings(row: User) -> None:
    """Delete the rows that are of the person alone, and what gives access."""
    sign_ins = Q(username__iexact=row.username)
    if row.email:
        sign_ins |= Q(username__iexact=row.email)
    for rows in (
        ApiToken.objects.filter(user=row),
        Limit.objects.filter(user=row),
        ListColumns.objects.filter(user=row),
        SavedView.objects.filter(user=row),
        Membership.objects.filter(user=row),
        Secret.objects.filter(user=row),
        IdempotencyKey.objects.filter(user=row),
        Preferences.objects.filter(user=row),
        MutedProject.objects.filter(user=row),
        Channel.objects.filter(owner=row, project=None),
        Notice.objects.filter(user=row),
        Schedule.objects.filter(owner=row),
        SeenFailures.objects.filter(user=row),
        AccessAttempt.objects.filter(sign_ins),
        AccessFailureLog.objects.filter(sign_ins),
        AccessLog.objects.filter(sign_ins),
        *([Delivery.objects.filter(address__iexact=row.email)] if row.email else []),
    ):
        rows.delete()
    of_invites = Q(used_by=row) | (Q(email__iexact=row.email) if row.email else Q(pk=None))
    Invite.objects.filter(of_invites).update(email="")
    Reservation.users.through._default_manager.filter(user=row).delete()
    GitSource.objects.filter(access_by=row).update(user="", sealed_token="")
    TimeExtension.objects.filter(asked_by=row).update(reason="")
    TimeExtension.objects.filter(decided_by=row).update(answer="")


# --- in the background -------------------------------------------------------------------------------------------


def go_on() -> int:
    """Go on with the erasures that are not finished; return how many are finished now. May be repeated, also after a crash."""
    finished = 0
    for erasure in Erasure.objects.filter(completed_at=None).order_by("pk"):
        try:
            finish(erasure)
            finished += 1
        except (DatabaseError, OSError):  # one erasure must not keep back the others
            logger.exception("erasing %s", erasure.pseudonym)
    return finished


def finish(erasure: Erasure) -> None:
    """Do all that follows the first step of an erasure, with its progress in the row."""
    for step, work in (
        ("sessions", _end_sessions(erasure.user)),
        ("jobs", _erase_jobs(erasure)),
        ("names", _replace_names(erasure)),
    ):
        Erasure.objects.filter(pk=erasure.pk).update(step=step)
        for changed in work:
            erasure.done += changed
            Erasure.objects.filter(pk=erasure.pk).update(done=erasure.done)
    Erasure.objects.filter(pk=erasure.pk).update(step="", names=[], completed_at=timezone.now())
    logger.info("%s is erased", erasure.pseudonym)


def _end_sessions(user: User) -> Iterator[int]:
    """Delete the sessions of a user, which the new salt has made void already."""
    for session in Session.objects.iterator(BATCH):
        if str(session.get_decoded().get(SESSION_KEY)) == str(user.pk):
            session.delete()
            yield 1


def _erase_jobs(erasure: Erasure) -> Iterator[int]:
    """Erase the jobs of a person, if that was chosen, except those that are kept or that another one needs."""
    last = 0
    while erasure.delete_jobs and (jobs := list(_deletable(erasure.user).filter(pk__gt=last)[:BATCH])):
        last = jobs[-1].pk
        for job in jobs:
            with transaction.atomic():
                row = Job.objects.select_for_update(of=("self",)).get(pk=job.pk)
                if row.kept or row.state in UNFINISHED_STATES:
                    continue
                put_in_trash(row, erasure.by, timezone.now())
                row.erase_at = timezone.now()
                row.save(update_fields=["erase_at"])
            trash.erase(row)
            yield 1


def _deletable(user: User) -> QuerySet[Job]:
    jobs = Job.objects.filter(submitted_by=user, erased_at=None, kept=False).exclude(state__in=UNFINISHED_STATES)
    return jobs.exclude(pk__in=Job.objects.filter(_is_followed(), submitted_by=user).values("pk")).order_by("pk")


def _replace_names(erasure: Erasure) -> Iterator[int]:
    for name in erasure.names:
        yield from renaming.replace_everywhere(str(name), erasure.pseudonym)
