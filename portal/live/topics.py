"""What a page may watch: ``lab``, ``mine``, ``job-5``. A topic is a name with, for some, the number of a row.

Who may not see the row may not watch it, and does not learn whether it exists.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from portal.accounts.models import User
from portal.environments.models import Build, Environment
from portal.jobs.models import Job
from portal.projects.models import GitFetch, Project
from portal.wake import LAB, SCHEDULER, job_channel, notices_channel, user_channel
from portal.whatif.models import Simulation

MAX_TOPICS = 12
"""The maximum number of topics of a page; one that compares jobs has six."""
TOPIC = re.compile(r"([a-z]+)(?:-([0-9]{1,18}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Topic:
    """What one page watches."""

    name: str
    kind: "Kind"
    number: int
    """The row's number, 0 for a topic without rows."""
    channels: tuple[str, ...]
    """Each notification of one of these means that something has changed."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The topics of one name."""

    seconds: float
    """Hinted at so often in any case: readings, forecasts and times change without a notification."""
    channels: Callable[[User, int], tuple[str, ...]] = lambda user, number: ()
    may_watch: Callable[[User, Sequence[int]], bool] = lambda user, numbers: True
    """Whether a user may see all rows with these numbers."""
    is_numbered: bool = False


def _lab(user: User, number: int) -> tuple[str, ...]:
    return LAB, SCHEDULER


def _job(user: User, number: int) -> tuple[str, ...]:
    return (job_channel(number),)


def _may_see_jobs(user: User, numbers: Sequence[int]) -> bool:
    return Job.objects.visible_to(user).filter(pk__in=numbers).count() == len(numbers)


def _may_see_environments(user: User, numbers: Sequence[int]) -> bool:
    return Environment.objects.visible_to(user).filter(pk__in=numbers).count() == len(numbers)


def _may_see_builds(user: User, numbers: Sequence[int]) -> bool:
    recipes = Environment.objects.visible_to(user).exclude(recipe="").values("recipe")
    return Build.objects.filter(pk__in=numbers, recipe__in=recipes).count() == len(numbers)


def _may_see_fetches(user: User, numbers: Sequence[int]) -> bool:
    rows = GitFetch.objects.filter(pk__in=numbers, project__in=Project.objects.visible_to(user))
    return rows.count() == len(numbers)


def _may_see_simulations(user: User, numbers: Sequence[int]) -> bool:
    return user.is_admin and Simulation.objects.filter(pk__in=numbers).count() == len(numbers)


KINDS = {
    "lab": Kind(30, _lab),
    "mine": Kind(30, lambda user, number: (user_channel(user.pk),)),
    "notices": Kind(60, lambda user, number: (notices_channel(user.pk),)),
    "nodes": Kind(5, _lab),
    "gpus": Kind(15, _lab),
    "charts": Kind(60),
    "joining": Kind(2, may_watch=lambda user, numbers: user.is_admin),
    "job": Kind(10, _job, _may_see_jobs, is_numbered=True),
    "readings": Kind(30, _job, _may_see_jobs, is_numbered=True),
    "environment": Kind(5, may_watch=_may_see_environments, is_numbered=True),
    "build": Kind(2, may_watch=_may_see_builds, is_numbered=True),
    "fetch": Kind(2, may_watch=_may_see_fetches, is_numbered=True),
    "simulation": Kind(2, may_watch=_may_see_simulations, is_numbered=True),
}
"""The topics by name; docs/development/live-pages.md lists what they mean."""


def topics_of(names: str, user: User) -> list[Topic]:
    """Return the topics named in ``lab,job-5``. Raises ValueError for an unknown name, none, or too many."""
    topics = [_topic(name, user) for name in dict.fromkeys(names.split(","))]
    if len(topics) > MAX_TOPICS:
        raise ValueError(f"A page has at most {MAX_TOPICS} topics.")
    return topics


def _topic(name: str, user: User) -> Topic:
    found = TOPIC.fullmatch(name)
    kind = KINDS.get(found[1]) if found else None
    if found is None or kind is None or kind.is_numbered != (found[2] is not None):
        raise ValueError("There is no such topic.")
    number = int(found[2] or 0)
    return Topic(name, kind, number, kind.channels(user, number))


def may_watch(user: User, topics: Iterable[Topic]) -> bool:
    """Return whether the user may see all that these topics are about, with a query for each kind."""
    by_kind: dict[Kind, set[int]] = {}
    for topic in topics:
        by_kind.setdefault(topic.kind, set()).add(topic.number)
    return all(kind.may_watch(user, sorted(numbers)) for kind, numbers in by_kind.items())
