"""The limits of users and groups: the scheduler keeps those on GPUs, submitting those on waiting jobs and on stored bytes."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import Group
from django.db import models, transaction
from django.db.models import F, Q

from portal.accounts.audit import audit
from portal.accounts.models import Limit, User

DEFAULTS = {"max_gpus": None, "max_queued": None, "max_space_gib": None, "weight": 1.0, "premium": False, "soft": False}
"""The values of a user or a group without a limit."""
MAX_SPACE_GIB = 1 << 24
"""The largest limit of stored bytes."""


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
    """May be exceeded on GPUs that no one else wants."""
    max_space_gib: int | None = None
    """How much the portal may store of these users together."""


def limits_in_force() -> tuple[LimitInForce, ...]:
    """Return all limits, in two queries."""
    return _limits_from_rows(Limit.objects.all())


def limits_for(user: User, *, lock: bool = False) -> tuple[LimitInForce, ...]:
    """Return the limits that apply to a user: their own, and those that they share with the members of their groups.

    With ``lock`` (inside a transaction) two submissions under one limit wait for each other, so that both cannot take the
    last place.
    """
    rows = Limit.objects.filter(Q(user=user) | Q(group__in=user.groups.all())).order_by("id")
    found = _limits_from_rows(rows.select_for_update(of=("self",)) if lock else rows)
    return tuple(
        limit
        for limit in found
        if any(value is not None for value in (limit.max_gpus, limit.max_queued, limit.max_space_gib))
    )


def limit_of(owner: User | Group, *, lock: bool = False) -> Limit | None:
    """Return the limit that was set for a user or a group; with ``lock`` no other transaction sets it until this one ends."""
    if lock:
        type(owner)._default_manager.select_for_update(no_key=True).get(pk=owner.pk)  # there may be no limit yet
    return Limit.objects.filter(**_key(owner)).first()


def audited_name(owner: User | Group) -> str:
    """Return the target of the audit log's entries about the limit of a user or a group."""
    return f"user {owner}" if isinstance(owner, User) else f"group {owner.name}"


def _key(owner: User | Group) -> dict[str, Any]:
    return {"user": owner} if isinstance(owner, User) else {"group": owner}


def may_use_premium(user: User) -> bool:
    """Return whether a user may submit premium jobs: admins, and those whose own limit or that of a group allows it."""
    mine = Q(user=user) | Q(group__in=user.groups.all())
    return user.is_admin or Limit.objects.filter(mine, premium=True).exists()


def _limits_from_rows(rows: "models.QuerySet[Limit]") -> tuple[LimitInForce, ...]:
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
            max_space_gib=limit.max_space_gib,
        )
        for limit in limits
    )


def limits_with_owners() -> "models.QuerySet[Limit]":
    """Return all limits with the users they apply to, in three queries."""
    return Limit.objects.select_related("user", "group").prefetch_related("group__user_set")


def visible_limits(user: User) -> "models.QuerySet[Limit]":
    """Return all limits to an admin, those of groups first; to a member their own and those of their groups."""
    rows = limits_with_owners()
    if not user.is_admin:
        rows = rows.filter(Q(user=user) | Q(group__in=user.groups.all()))
    return rows.order_by(F("user__username").asc(nulls_first=True), "group__name")


def set_limit(
    actor: User,
    owner: User | Group,
    *,
    max_gpus: int | None,
    max_queued: int | None,
    weight: float = 1.0,
    premium: bool = False,
    soft: bool = False,
    max_space_gib: int | None = None,
) -> None:
    """Set the limit of a user or a group; a limit without any value other than the defaults is deleted."""
    key = _key(owner)
    after = {
        "max_gpus": max_gpus,
        "max_queued": max_queued,
        "max_space_gib": max_space_gib,
        "weight": weight,
        "premium": premium,
        "soft": soft,
    }
    with transaction.atomic():
        limit = limit_of(owner, lock=True)
        before = {name: getattr(limit, name) for name in after} if limit else {}
        if after == DEFAULTS:
            after = {}
        if before == after:
            return
        if after:
            Limit.objects.update_or_create(**key, defaults=after)
        elif limit:
            limit.delete()
        audit(actor, "limit.set", audited_name(owner), before, after)
