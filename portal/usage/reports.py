"""The reports of pages, files and endpoints: the same numbers for all, limited to what the user may see.

A member sees their own lines, the totals of their groups and projects, and how much the lab offered and used in total.
Admins see everything.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from math import ceil
from statistics import fmean, median

from django.contrib.auth.models import Group

from portal.accounts.models import User
from portal.projects.models import Project
from portal.usage import rollups
from portal.usage.ledger import Account, Day, LedgerLine, Spent, decayed_balance

HALF_LIFE_DAYS = 7.0
"""The half-life of a balance; it is the default of fair share too."""
BALANCE_DAYS = 70
"""How far back balances reach: after ten half-lives a thousandth is left."""
GROUPINGS = {"user": "Person", "group": "Group", "project": "Project", "month": "Month", "day": "Day"}


@dataclass(frozen=True, slots=True)
class Visibility:
    """What a user may see."""

    user: int
    everything: bool
    groups: frozenset[int]
    projects: frozenset[int]


def visibility_of(user: User) -> Visibility:
    return Visibility(
        user=user.pk,
        everything=user.is_admin,
        groups=frozenset(user.groups.values_list("pk", flat=True)),
        projects=frozenset(Project.objects.visible_to(user).values_list("pk", flat=True)),
    )


# --- the ledger ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Statement:
    """A line of the ledger: of a person, of a group, or of all others that the user may not see one by one."""

    name: str
    kind: str
    """``user``, ``group`` or ``others``."""
    id: int | None
    line: LedgerLine = field(default_factory=LedgerLine)
    balances: dict[int, int] = field(default_factory=dict)
    """Balances by age in days."""

    @property
    def balance(self) -> float:
        """Lent minus borrowed; older days count less."""
        return decayed_balance(self.balances, HALF_LIFE_DAYS)

    def add(self, line: LedgerLine | None, age: int, owed: int) -> None:
        if line is not None:
            self.line.add(line)
        self.balances[age] = self.balances.get(age, 0) + owed


@dataclass(slots=True)
class Ledger:
    first: date
    last: date
    people: list[Statement]
    groups: list[Statement]
    capacity: int = 0
    unclaimed: int = 0
    total: LedgerLine = field(default_factory=LedgerLine)

    @property
    def idle(self) -> int:
        return self.unclaimed + self.total.spare

    @property
    def statements(self) -> list[Statement]:
        return [*self.people, *self.groups]


def ledger(visibility: Visibility, first: date, last: date, now: datetime) -> Ledger:
    """Return the lines of all; a member gets their own, their groups' and one line for all others, so that sums agree."""
    last = min(last, rollups.today(now))
    days = rollups.daily_sums(min(first, last - timedelta(days=BALANCE_DAYS)), last, now)
    names, group_names = _names(days.values())
    people: dict[int | None, Statement] = {}
    groups: dict[int | None, Statement] = {}
    report = Ledger(first, last, [], [])
    for day, sums in days.items():
        inside = day >= first
        if inside:
            report.capacity += sums.capacity
            report.unclaimed += sums.unclaimed
        for (group, user), line in sums.lines.items():
            taken, age, owed = line if inside else None, (last - day).days, line.balance
            if taken is not None:
                report.total.add(taken)
            known = visibility.everything or user == visibility.user
            person = user if known else None
            if person not in people:
                name = names.get(user, "?") if known else "Everyone else"
                people[person] = Statement(name, "user" if known else "others", person)
            people[person].add(taken, age, owed)
            if visibility.everything or group in visibility.groups:
                if group not in groups:
                    groups[group] = Statement(group_names.get(group, "?") if group else "No group", "group", group)
                groups[group].add(taken, age, owed)
    if not visibility.everything and visibility.user not in people:
        name = User.objects.values_list("username", flat=True).get(pk=visibility.user)
        people[visibility.user] = Statement(name, "user", visibility.user)
    report.people = sorted(people.values(), key=_statement_order)
    report.groups = sorted(groups.values(), key=_statement_order)
    return report


def _statement_order(statement: Statement) -> tuple[bool, int, str]:
    return (statement.id is None, -statement.line.used, statement.name)


# --- usage ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Row:
    """The usage of a person, group, project, month or day."""

    name: str
    key: int | date | None
    spent: Spent = field(default_factory=Spent)

    @property
    def mean(self) -> float | None:
        return fmean(self.spent.waits) if self.spent.waits else None

    @property
    def median(self) -> float | None:
        return median(self.spent.waits) if self.spent.waits else None

    @property
    def p95(self) -> float | None:
        """The 95th percentile of the waiting times (nearest rank)."""
        waits = sorted(self.spent.waits)
        return waits[ceil(0.95 * len(waits)) - 1] if waits else None

    @property
    def id(self) -> int | str | None:
        """The id in the API and in CSV files."""
        if not isinstance(self.key, date):
            return self.key
        return self.key.isoformat() if self.name != _month_name(self.key) else f"{self.key:%Y-%m}"


@dataclass(slots=True)
class Usage:
    first: date
    last: date
    by: str
    rows: list[Row]
    total: Row
    days: list[Row]
    """The same usage by day."""
    capacity: dict[date, int] | None = None
    """By day; None unless the rows are of the whole lab."""

    @property
    def idle(self) -> dict[date, int]:
        if self.capacity is None:
            return {}
        return {row.key: self.capacity.get(row.key, 0) - row.spent.allocated for row in self.days}  # type: ignore[misc,arg-type]


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Narrows usage to one person, group or project; the ids are ones that the user may see."""

    user: int | None = None
    group: int | None = None
    project: int | None = None

    def includes(self, account: Account, project: int) -> bool:
        group, user = account
        return (
            (self.user is None or user == self.user)
            and (self.group is None or group == self.group)
            and (self.project is None or project == self.project)
        )


def usage(
    visibility: Visibility,
    first: date,
    last: date,
    now: datetime,
    by: str = "user",
    usage_filter: UsageFilter | None = None,
) -> Usage:
    usage_filter = usage_filter or UsageFilter()
    days = rollups.daily_sums(first, last, now)
    names, group_names = _names(days.values())
    used_projects = {project for sums in days.values() for _, project in sums.spent}
    project_names = dict(Project.with_deleted.filter(pk__in=used_projects).values_list("pk", "name")) if days else {}
    may = _line_filter(visibility, by, usage_filter)
    rows: dict[int | date | None, Row] = {}
    by_day: dict[date, Row] = {}
    total = Row("Total", None)
    for day, sums in days.items():
        by_day[day] = Row(_day_name(day), day)
        if by == "day":
            rows[day] = Row(_day_name(day), day)
        if by == "month":
            rows.setdefault(day.replace(day=1), Row(_month_name(day), day.replace(day=1)))
        for (account, project), spent in sums.spent.items():
            if not usage_filter.includes(account, project) or not may(account, project):
                continue
            group, user = account
            key: int | date | None
            if by == "user":
                key, name = user, names.get(user, "?")
            elif by == "group":
                key, name = group, group_names.get(group, "?") if group else "No group"
            elif by == "project":
                key, name = project, project_names.get(project, "?")
            else:
                key = day if by == "day" else day.replace(day=1)
                name = rows[key].name
            rows.setdefault(key, Row(name, key)).spent.add(spent)
            by_day[day].spent.add(spent)
            total.spent.add(spent)
    ordered = list(rows.values())
    if by in ("user", "group", "project"):
        ordered.sort(key=lambda row: (-row.spent.allocated, row.name))
    whole = visibility.everything and usage_filter == UsageFilter()
    capacity = {day: sums.capacity for day, sums in days.items()} if whole else None
    return Usage(first, min(last, rollups.today(now)), by, ordered, total, list(by_day.values()), capacity)


def _line_filter(visibility: Visibility, by: str, usage_filter: UsageFilter) -> Callable[[Account, int], bool]:
    """Return a test for the lines to sum up: by group and project also those of other members; else the user's own."""
    if visibility.everything:
        return lambda account, project: True
    if by == "project" or (by in ("month", "day") and usage_filter.project is not None):
        return lambda account, project: project in visibility.projects
    if by == "group" or (by in ("month", "day") and usage_filter.group is not None):
        return lambda account, project: account[0] in visibility.groups
    return lambda account, project: account[1] == visibility.user


def _names(days: Iterable[Day]) -> tuple[dict[int, str], dict[int, str]]:
    """Return the names of users and groups, by id."""
    users: set[int] = set()
    groups: set[int] = set()
    for sums in days:
        for group, user in (*sums.lines, *(account for account, _ in sums.spent)):
            users.add(user)
            if group is not None:
                groups.add(group)
    return (
        dict(User.objects.filter(pk__in=users).values_list("pk", "username")),
        dict(Group.objects.filter(pk__in=groups).values_list("pk", "name")),
    )


def _day_name(day: date) -> str:
    return f"{day:%d %b %Y}"


def _month_name(day: date) -> str:
    return f"{day:%B %Y}"
