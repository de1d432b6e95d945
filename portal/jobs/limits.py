"""How much of their limits users and groups use now: GPUs held and jobs waiting."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from django.contrib.auth.models import Group
from django.db.models import Count

from portal.accounts.limits import limit_of, limits_with_owners
from portal.accounts.models import Limit, User
from portal.jobs.models import WAITING_STATES, Allocation, Job


@dataclass(frozen=True, slots=True)
class Usage:
    """What a user, or the members of a group together, hold now."""

    gpus: int = 0
    waiting: int = 0
    """Jobs that are queued or on hold."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.gpus + other.gpus, self.waiting + other.waiting)


@dataclass(frozen=True, slots=True)
class LimitWithUsage:
    """A limit beside what the users under it hold together now."""

    limit: Limit
    usage: Usage


def usage_by_user(user_ids: Collection[int]) -> dict[int, Usage]:
    """Return the usage of each of these users, in two queries."""
    held = Allocation.objects.filter(released_at=None, attempt__job__submitted_by__in=user_ids)
    waiting = Job.objects.filter(state__in=WAITING_STATES, submitted_by__in=user_ids)
    gpus = dict(held.order_by().values_list("attempt__job__submitted_by").annotate(count=Count("pk")))
    jobs = dict(waiting.order_by().values_list("submitted_by").annotate(count=Count("pk")))
    return {user_id: Usage(gpus.get(user_id, 0), jobs.get(user_id, 0)) for user_id in user_ids}


def usage_together(user_ids: Collection[int]) -> Usage:
    """Return what these users hold together."""
    return sum(usage_by_user(user_ids).values(), Usage())


def with_usage(limits: Sequence[Limit]) -> list[LimitWithUsage]:
    """Return the limits with their usage, in two queries whatever their number."""
    owners = [_user_ids(limit) for limit in limits]
    by_user = usage_by_user({user_id for user_ids in owners for user_id in user_ids})
    return [
        LimitWithUsage(limit, sum((by_user[user_id] for user_id in user_ids), Usage()))
        for limit, user_ids in zip(limits, owners, strict=True)
    ]


def _user_ids(limit: Limit) -> list[int]:
    if limit.group:
        return [user.pk for user in limit.group.user_set.all()]
    return [limit.user_id] if limit.user_id else []


def limit_with_usage(owner: User | Group) -> LimitWithUsage:
    """Return the limit of a user or a group with its usage; an unlimited one if none was set."""
    unlimited = Limit(user=owner) if isinstance(owner, User) else Limit(group=owner)
    (found,) = with_usage([limit_of(owner) or unlimited])
    return found


def all_limits_with_usage() -> list[LimitWithUsage]:
    """Return all limits with their usage, those of groups first."""
    rows = sorted(limits_with_owners(), key=lambda row: (row.group is None, str(row.user or row.group).lower()))
    return with_usage(rows)
