"""The calendar of reservations: who has which GPUs for themselves, and when. The scheduler plans around it."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import Group
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.cluster.models import LIVE_NODE, Node, Reservation, usable_gpu
from portal.cluster.slots import counted, node_nouns
from portal.names import name_problem
from portal.refused import Refused
from portal.wake import wake_scheduler

MAX_LENGTH = timedelta(days=90)
MAX_AHEAD = timedelta(days=365)
RESENT_WITHIN = timedelta(minutes=1)
"""An equal reservation by the same person within this time is a double click, or a request that was sent again."""


def valid_reservations() -> QuerySet[Reservation]:
    """Return the reservations that were not cancelled, with their users and groups, in four queries."""
    return (
        Reservation.objects.filter(cancelled_at__isnull=True)
        .select_related("node", "created_by")
        .prefetch_related("users", "groups__user_set")
    )


def active_or_upcoming(now: datetime) -> QuerySet[Reservation]:
    """Return those that are active or to come."""
    return valid_reservations().filter(end__gt=now)


def over(now: datetime) -> QuerySet[Reservation]:
    """Return those that are over, the latest first."""
    return valid_reservations().filter(end__lte=now).order_by("-end", "-pk")


def between(start: datetime, end: datetime) -> QuerySet[Reservation]:
    """Return those of which some part lies within a time."""
    return valid_reservations().filter(end__gt=start, start__lt=end)


def owner_ids(reservation: Reservation) -> set[int]:
    """Return the ids of the users whose jobs may use a reservation. For a row of ``valid_reservations``, this needs no query."""
    found = {user.pk for user in reservation.users.all()}
    return found.union(user.pk for group in reservation.groups.all() for user in group.user_set.all())


def reserve(
    actor: User,
    *,
    name: str,
    node: Node,
    gpus: int,
    start: datetime,
    end: datetime,
    gpu_model: str = "",
    users: Iterable[User] = (),
    groups: Iterable[Group] = (),
) -> Reservation:
    """Create a reservation, of any GPUs of a node or those of one model; an equal request within a minute returns the same.

    Raises Refused when too few GPUs are left or the times are invalid.
    """
    users, groups = list(users), list(groups)
    if problem := name_problem(name):
        raise Refused(problem, field="name")
    if end <= start:
        raise Refused("It must end after it starts.", field="end")
    if end <= timezone.now():
        raise Refused("That time is already over.", field="end")
    if end - start > MAX_LENGTH or start - timezone.now() > MAX_AHEAD:
        raise Refused("A reservation can be at most 90 days long and start at most a year ahead.", field="end")
    if not users and not groups:
        raise Refused("Name at least one user or group.", field="users")
    with transaction.atomic():
        locked = Node.objects.select_for_update(no_key=True).filter(LIVE_NODE, pk=node.pk).first()
        if locked is None:
            raise Refused("That node is no longer part of the lab.", field="node")
        values = {
            "name": name,
            "node": locked,
            "gpus": gpus,
            "gpu_model": gpu_model,
            "start": start,
            "end": end,
            "created_by": actor,
        }
        if resent := _just_made(values, users, groups):
            return resent
        usable = locked.gpus.filter(usable_gpu())
        total = usable.filter(model=gpu_model).count() if gpu_model else usable.count()
        if gpu_model and not total:
            models = ", ".join(sorted(set(usable.values_list("model", flat=True)))) or "no GPUs that can be used"
            raise Refused(f"Node {locked.name} has no GPU of this model. It has {models}.", field="gpu_model")
        left = min(
            total - _max_reserved(locked, start, end, gpu_model), usable.count() - _max_reserved(locked, start, end)
        )
        if gpus > left:
            noun = f"GPU of the model {gpu_model}" if gpu_model else node_nouns([locked.pk])[locked.pk]
            offered = f"{total} GPUs of the model {gpu_model}" if gpu_model and total > 1 else counted(total, noun)
            has = offered if left == total else f"{max(left, 0)} of {offered} to reserve in that time"
            others = "" if left == total else "; the others are already reserved"
            raise Refused(f"Node {locked.name} has only {has}{others}.", field="gpus")
        row = Reservation.objects.create(**values, created_at=timezone.now())
        row.users.set(users)
        row.groups.set(groups)
        people = [user.username for user in users] + [f"group {group.name}" for group in groups]
        audit(
            actor,
            "reservation.made",
            name,
            after={
                "node": locked.name,
                "gpus": gpus,
                **({"gpu_model": gpu_model} if gpu_model else {}),
                "start": start.isoformat(),
                "end": end.isoformat(),
                "for": sorted(people),
            },
        )
        wake_scheduler()
    return row


def _just_made(values: dict[str, Any], users: Iterable[User], groups: Iterable[Group]) -> Reservation | None:
    """Return the equal reservation that was just made. The node must be locked: both requests may come at once."""
    recent = Reservation.objects.filter(
        **values, cancelled_at__isnull=True, created_at__gt=timezone.now() - RESENT_WITHIN
    )
    asked = {user.pk for user in users}, {group.pk for group in groups}
    for row in recent.prefetch_related("users", "groups"):
        if ({user.pk for user in row.users.all()}, {group.pk for group in row.groups.all()}) == asked:
            return row
    return None


def cancel(actor: User, reservation: Reservation) -> None:
    """End a reservation now. Ending it twice changes nothing."""
    with transaction.atomic():
        row = Reservation.objects.select_for_update(no_key=True).get(pk=reservation.pk)
        if row.cancelled_at is not None:
            return
        row.cancelled_at = timezone.now()
        row.save(update_fields=["cancelled_at"])
        audit(actor, "reservation.cancelled", row.name, before={"node": row.node_id, "gpus": row.gpus})
        wake_scheduler()


def reservations_of(user: User, now: datetime) -> QuerySet[Reservation]:
    """Return the active and upcoming reservations that name a user; those of their groups stay with the groups."""
    return active_or_upcoming(now).filter(
        pk__in=Reservation.users.through.objects.filter(user=user).values("reservation")
    )


def end_for(actor: User, user: User, reservation: Reservation) -> None:
    """Take a user out of a reservation; one that was theirs alone ends."""
    if owner_ids(reservation) <= {user.pk} and not reservation.groups.all():
        cancel(actor, reservation)
        return
    _change_people(actor, reservation, leaves=user, joins=None)


def hand_over(actor: User, user: User, reservation: Reservation, to: User) -> None:
    """Put another user in the place of one in a reservation."""
    _change_people(actor, reservation, leaves=user, joins=to)


def _change_people(actor: User, reservation: Reservation, *, leaves: User, joins: User | None) -> None:
    with transaction.atomic():
        row = Reservation.objects.select_for_update(no_key=True).get(pk=reservation.pk)
        row.users.remove(leaves)
        if joins is not None:
            row.users.add(joins)
        after = {"users": sorted(row.users.values_list("username", flat=True))}
        audit(actor, "reservation.people", row.name, {"left": leaves.username}, after)
        wake_scheduler()


def _max_reserved(node: Node, start: datetime, end: datetime, gpu_model: str = "") -> int:
    """Return the maximum number of GPUs of the node that are reserved at any moment of that time, perhaps as of one model."""
    those = Reservation.objects.filter(Q(end__gt=start, start__lt=end), node=node, cancelled_at__isnull=True)
    if gpu_model:
        those = those.filter(gpu_model=gpu_model)
    others = list(those.values_list("start", "end", "gpus"))
    moments = [start, *(begins for begins, _, _ in others if begins > start)]
    return max(sum(gpus for begins, ends, gpus in others if begins <= moment < ends) for moment in moments)
