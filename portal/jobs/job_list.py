"""The list of jobs: its columns, its filters, and what else its rows show."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import (
    Case,
    Count,
    F,
    FloatField,
    Func,
    IntegerField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
)
from django.db.models.functions import Coalesce, Lower, Now
from django.http import QueryDict
from django.utils import timezone

from portal.accounts.models import User
from portal.days import read_days
from portal.environments.models import Environment
from portal.jobs.models import FINISHED_STATES, UNFINISHED_STATES, Allocation, Attempt, Job, JobState
from portal.jobs.spec import WORD_LISTS
from portal.jobs.word_lists import contains_all_words
from portal.lists import Column, Listing, declare, quote
from portal.projects.models import Project
from portal.search import any_contains, stored_text_contains

STATE_ORDER = (
    JobState.RUNNING,
    JobState.QUEUED,
    JobState.HELD,
    JobState.SUCCEEDED,
    JobState.FAILED,
    JobState.CANCELLED,
)
TIER_ORDER = (Job.Tier.PREMIUM, Job.Tier.STANDARD, Job.Tier.BASIC)
PERIODS = {"1d": "in the last 24 hours", "7d": "in the last 7 days", "30d": "in the last 30 days"}


def _rank(field: str, values: Iterable[str]) -> Case:
    """Return the place of a field's value in an order of ours."""
    cases = [When(**{field: value}, then=Value(place)) for place, value in enumerate(values)]
    return Case(*cases, default=Value(len(cases)), output_field=IntegerField())


class Seconds(Func):
    """A moment as a number. Differences of moments are computed by Python on SQLite, row by row."""

    output_field = FloatField()

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> tuple[str, Any]:
        return self.as_sql(compiler, connection, template="julianday(%(expressions)s) * 86400", **extra)

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> tuple[str, Any]:
        return self.as_sql(compiler, connection, template="EXTRACT(EPOCH FROM %(expressions)s)::float8", **extra)


JOBS = declare(
    Listing(
        "jobs",
        (
            Column("number", "Number", ("pk",), numeric=True, falls=True, shown=False),
            Column("name", "Job", (Lower("name"),), fixed=True),
            Column("state", "State", (_rank("state", STATE_ORDER),)),
            Column("project", "Project", (Lower("project__name"),)),
            Column("person", "By", (Lower("submitted_by__username"),)),
            Column("gpus", "GPUs", ("max_gpus", "min_gpus"), numeric=True, falls=True),
            Column("submitted", "Submitted", ("submitted_at",), falls=True),
            Column(
                "wait",
                "Waited",
                (Seconds("started_at") - Seconds("submitted_at"),),
                falls=True,
                nulls=True,
                shown=False,
            ),
            Column("started", "Started", ("started_at",), falls=True, nulls=True, shown=False),
            Column("finished", "Finished", ("finished_at",), falls=True, nulls=True, shown=False),
            Column(
                "time",
                "Time",
                (Seconds(Coalesce("finished_at", Now())) - Seconds("started_at"),),
                numeric=True,
                falls=True,
                nulls=True,
            ),
            Column("gpu_hours", "GPU-hours", numeric=True, shown=False),
            Column("limit", "Time limit", ("time_limit_seconds",), numeric=True, falls=True, shown=False),
            Column("priority", "Priority", (_rank("tier", TIER_ORDER), F("priority") * -1), shown=False),
            Column("attempts", "Attempts", numeric=True, shown=False),
            Column("launcher", "Launcher", ("launcher",), shown=False),
            Column("environment", "Environment", (Lower("environment__title"),), shown=False),
            Column("group", "Group", (Lower("group__name"),), nulls=True, shown=False),
            Column("command", "Command", ("entry",), shown=False),
        ),
        "-submitted",
        ("q", "state", "project", "person", "mine", "period", "from", "to", "environment", *WORD_LISTS),
    )
)


# --- filters -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobFilter:
    """What a query string asks for; ``problems`` has a sentence for each part that means nothing."""

    condition: Q
    problems: tuple[str, ...]
    states: tuple[str, ...]
    """The states that are asked for, in the order of the menu."""
    period: str


def read_filter(query: QueryDict, user: User, now: datetime | None = None) -> JobFilter:
    problems: list[str] = []
    states = _states(query.getlist("state"), problems)
    condition = Q(state__in=states) if states else Q()
    if query.get("mine"):
        condition &= Q(submitted_by=user)
    condition &= _of_project(query.get("project", "").strip(), user, problems)
    condition &= _of_person(query.get("person", "").strip(), problems)
    condition &= _with_environment(query.get("environment", "").strip(), user, problems)
    condition &= _submitted(query, problems, now or timezone.now())
    for name in WORD_LISTS:
        condition &= contains_all_words(name, query.get(name, "").strip())
    condition &= _with_words(query.get("q", "").replace("\0", "").strip())
    period = query.get("period", "")
    return JobFilter(condition, tuple(problems), states, period if period in PERIODS else "")


def _states(asked: Iterable[str], problems: list[str]) -> tuple[str, ...]:
    found: set[str] = set()
    for text in filter(None, (each.strip() for each in asked)):
        if text == "active":
            found.update(UNFINISHED_STATES)
        elif text == "finished":
            found.update(FINISHED_STATES)
        elif text.upper() in JobState.values:
            found.add(text.upper())
        else:
            problems.append(f"There is no state “{quote(text)}”: that part of the filter is left out.")
    return tuple(state.value for state in STATE_ORDER if state in found)


def _of_project(text: str, user: User, problems: list[str]) -> Q:
    if not text:
        return Q()
    if not is_id(text):
        problems.append(f"“{quote(text)}” is not the number of a project: that part of the filter is left out.")
        return Q()
    if not Project.objects.visible_to(user).filter(pk=int(text)).exists():
        problems.append(f"There is no project {text}, or you may not see it.")
    return Q(project=int(text))


def _with_environment(key: str, user: User, problems: list[str]) -> Q:
    if not key:
        return Q()
    found = Environment.objects.visible_to(user).filter(key=key.replace("\0", "")).first()
    if found is None:
        problems.append(f"There is no environment “{quote(key)}”, or you may not see it.")
    return Q(environment=found)


def _of_person(name: str, problems: list[str]) -> Q:
    if not name:
        return Q()
    people = User.objects.called(name)
    if not people:
        problems.append(f"No user is called “{quote(name)}”.")
    return Q(submitted_by__in=people)


def _submitted(query: QueryDict, problems: list[str], now: datetime) -> Q:
    condition, period = Q(), query.get("period", "").strip()
    if period in PERIODS:
        condition &= Q(submitted_at__gte=now - timedelta(days=int(period[:-1])))
    elif period:
        problems.append(f"There is no period “{quote(period)}”. Choose one of: {', '.join(PERIODS)}.")
    days = read_days(query, "job")
    problems.extend(days.problems)
    return condition & days.condition("submitted_at")


def _with_words(words: str) -> Q:
    if not words:
        return Q()
    condition = (
        stored_text_contains("search_text", words)
        | Q(project__in=Project.objects.filter(any_contains(words, "name")).order_by().values("pk"))
        | Q(submitted_by__in=User.objects.filter(any_contains(words, "username")).order_by().values("pk"))
    )
    number = words.lstrip("#")
    return condition | Q(pk=int(number)) if is_id(number) else condition


def is_id(text: str) -> bool:
    """Return whether a text is a number that a row may have."""
    return text.isascii() and text.isdecimal() and len(text) <= 18


# --- rows --------------------------------------------------------------------------------------------------------


def with_list_columns(jobs: QuerySet[Job], keys: Iterable[str] = ()) -> QuerySet[Job]:
    """Add what a row of a list shows, in one query; ``keys`` are the optional columns that are shown."""
    held = Allocation.objects.filter(attempt__job=OuterRef("pk"), released_at__isnull=True).order_by()
    count = held.values("attempt__job").annotate(n=Count("pk")).values("n")
    also = {"environment", "group"}.intersection(keys)
    left_out = {"description", "env_vars", "search_text"} | ({"arguments"} if "command" not in keys else set())
    rows = jobs.select_related("project", "submitted_by", *also).defer(*left_out)
    if "environment" in also:
        rows = rows.defer("environment__packages")
    if "attempts" in keys:
        attempts = Attempt.objects.filter(job=OuterRef("pk")).order_by().values("job").annotate(n=Count("pk"))
        rows = rows.annotate(attempt_count=Coalesce(Subquery(attempts.values("n")), 0))
    return rows.annotate(held_gpus=Coalesce(Subquery(count), 0))


def add_gpu_hours(jobs: Iterable[Job], now: datetime) -> None:
    """Give jobs ``gpu_hours_used``: how long they have held GPUs in all. One query."""
    rows = list(jobs)
    seconds: dict[int, float] = defaultdict(float)
    held = Allocation.objects.filter(attempt__job__in=rows).order_by()
    for number, since, until in held.values_list("attempt__job", "allocated_at", "released_at"):
        seconds[number] += ((until or now) - since).total_seconds()
    for job in rows:
        job.gpu_hours_used = seconds[job.pk] / 3600  # type: ignore[attr-defined]  # for the template
