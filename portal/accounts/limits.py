"""What a user or a group may hold at most: looked up by the control loop (GPUs) and by submit (queued jobs)."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.contrib.auth.models import Group
from django.db import models, transaction
from django.db.models import Count, F, Q

from portal.accounts.audit import audit
from portal.accounts.models import Limit, User

LIVE_GPU = Q(jobs__attempts__allocations__released_at__isnull=True, jobs__attempts__allocations__isnull=False)
WAITING = ("QUEUED", "HELD")


@dataclass(frozen=True, slots=True)
class LimitInForce:
    """At most ``max_gpus`` at once and ``max_queued`` waiting jobs for these users together. None means no limit."""

    name: str
    """``alice`` or ``group students``: goes into sentences."""
    max_gpus: int | None
    max_queued: int | None
    user_ids: frozenset[int]
    user_id: int | None = None
    group_id: int | None = None
    weight: float = 1.0
    """Where GPUs are shared fairly: with 2 it gets twice as many as with 1."""
    soft: bool = False
    """May be exceeded on GPUs that nobody else wants."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What somebody holds now."""

    gpus: int = 0
    waiting: int = 0


def limits_in_force() -> tuple[LimitInForce, ...]:
    """All limits, in two queries: what the scheduler's snapshot needs."""
    return _in_force(Limit.objects.all())


def limits_for(user: User, *, lock: bool = False) -> tuple[LimitInForce, ...]:
    """The limits a user is under: their own, and those of their groups, which the members share.

    With ``lock`` (inside a transaction) two submits under one limit wait for each other, so that counting
    first and adding then cannot overstep it.
    """
    rows = Limit.objects.filter(Q(user=user) | Q(group__in=user.groups.all())).order_by("id")
    found = _in_force(rows.select_for_update(of=("self",)) if lock else rows)
    return tuple(limit for limit in found if limit.max_gpus is not None or limit.max_queued is not None)


def may_use_premium(user: User) -> bool:
    """Admins may, and those whom they let, alone or as members of a group."""
    mine = Q(user=user) | Q(group__in=user.groups.all())
    return user.is_admin or Limit.objects.filter(mine, premium=True).exists()


def _in_force(rows: "models.QuerySet[Limit]") -> tuple[LimitInForce, ...]:
    limits = list(rows.select_related("user", "group").order_by("id"))
    members: dict[int, set[int]] = defaultdict(set)
    groups = [limit.group_id for limit in limits if limit.group_id]
    for group_id, user_id in User.groups.through.objects.filter(group_id__in=groups).values_list("group_id", "user_id"):
        members[group_id].add(user_id)
    return tuple(
        LimitInForce(
            name=limit.user.username if limit.user else f"group {limit.group.name}" if limit.group else "",
            max_gpus=limit.max_gpus,
            max_queued=limit.max_queued,
            user_ids=frozenset({limit.user_id} if limit.user_id else members[limit.group_id or 0]),
            user_id=limit.user_id,
            group_id=limit.group_id,
            weight=limit.weight,
            soft=limit.soft,
        )
        for limit in limits
    )


def usage_of(user_ids: Iterable[int]) -> dict[int, Usage]:
    """GPUs held and jobs waiting now, by user."""
    ids = list(user_ids)
    # Two queries: joined into one, each count would multiply the other.
    gpus = dict(
        User.objects.filter(LIVE_GPU, id__in=ids)
        .annotate(n=Count("jobs__attempts__allocations"))
        .values_list("id", "n")
    )
    waiting = dict(
        User.objects.filter(id__in=ids, jobs__state__in=WAITING).annotate(n=Count("jobs")).values_list("id", "n")
    )
    return {id: Usage(gpus.get(id, 0), waiting.get(id, 0)) for id in ids}


def usage_together(user_ids: Iterable[int]) -> Usage:
    parts = usage_of(user_ids).values()
    return Usage(sum(part.gpus for part in parts), sum(part.waiting for part in parts))


@dataclass(frozen=True, slots=True)
class LimitWithUsage:
    """A limit beside what its people hold together now."""

    limit: Limit
    usage: Usage


def _limits() -> "models.QuerySet[Limit]":
    """All of them, with the people they are about."""
    return Limit.objects.select_related("user", "group").prefetch_related("group__user_set")


def visible_limits(user: User) -> "models.QuerySet[Limit]":
    """All limits for an admin, groups first; for a member their own and those of their groups."""
    rows = _limits()
    if not user.is_admin:
        rows = rows.filter(Q(user=user) | Q(group__in=user.groups.all()))
    return rows.order_by(F("user__username").asc(nulls_first=True), "group__name")


def with_usage(rows: Sequence[Limit]) -> list[LimitWithUsage]:
    """In two queries, whatever the number of rows."""
    people = [[user.pk for user in row.group.user_set.all()] if row.group else [row.user_id or 0] for row in rows]
    used = usage_of({id for ids in people for id in ids})
    nothing = Usage()
    return [
        LimitWithUsage(
            row,
            Usage(
                sum(used.get(id, nothing).gpus for id in ids),
                sum(used.get(id, nothing).waiting for id in ids),
            ),
        )
        for row, ids in zip(rows, people, strict=True)
    ]


def limit_of(owner: User | Group) -> LimitWithUsage:
    """The limit of a user or a group; one without any limits if none was set."""
    key = {"user": owner} if isinstance(owner, User) else {"group": owner}
    (found,) = with_usage([Limit.objects.filter(**key).first() or Limit(**key)])
    return found


def overview() -> list[tuple[Limit, Usage]]:
    """Each limit with what its people hold together now, groups first."""
    rows = sorted(_limits(), key=lambda row: (row.group is None, str(row.user or row.group).lower()))
    return [(each.limit, each.usage) for each in with_usage(rows)]


def set_limit(
    actor: User,
    owner: User | Group,
    *,
    max_gpus: int | None,
    max_queued: int | None,
    weight: float = 1.0,
    premium: bool = False,
    soft: bool = False,
) -> None:
    """Sets, changes or (with nothing unusual) takes away what a user or a group may have."""
    key = {"user": owner} if isinstance(owner, User) else {"group": owner}
    after = {"max_gpus": max_gpus, "max_queued": max_queued, "weight": weight, "premium": premium, "soft": soft}
    with transaction.atomic():
        limit = Limit.objects.select_for_update(of=("self",)).filter(**key).first()
        before = {name: getattr(limit, name) for name in after} if limit else {}
        if after == NOTHING_UNUSUAL:
            after = {}
        if before == after:
            return
        if after:
            Limit.objects.update_or_create(**key, defaults=after)
        elif limit:
            limit.delete()
        audit(actor, "limit.set", f"user {owner}" if isinstance(owner, User) else f"group {owner.name}", before, after)


NOTHING_UNUSUAL = {"max_gpus": None, "max_queued": None, "weight": 1.0, "premium": False, "soft": False}
