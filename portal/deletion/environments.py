"""Removing environments: what needs one, and what could not be repeated without it.

It is hidden from new jobs; its row stays, since jobs refer to it, and its packages are deleted once no job needs them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from django.db import transaction

from portal.accounts.models import User
from portal.deletion.words import MAX_NAMED, jobs_listed, listed, sentence
from portal.environments import services
from portal.environments.models import Environment
from portal.jobs.models import UNFINISHED_STATES, Job
from portal.refused import Refused
from portal.schedules.models import Schedule


@dataclass(frozen=True, slots=True)
class Use:
    """What needs an environment, and what could not be repeated without it."""

    hindrances: list[str]
    """Sentences; empty if it can be removed."""
    ended: int
    """The number of jobs that have ended and ran in it."""
    stored_bytes: int
    """What its packages take on the portal's disk, as far as no other environment has the same."""


def use_of(environment: Environment) -> Use:
    """Return what needs an environment; of jobs and schedules that the reader may not see, numbers and names alone."""
    jobs = Job.objects.filter(environment=environment, deleted_at=None)
    found = []
    for rows, one, many in (
        (jobs.filter(state__in=UNFINISHED_STATES), "has not ended", "have not ended"),
        (jobs.filter(kept=True), "is kept", "are kept"),
    ):
        if count := rows.count():
            numbers = list(rows.order_by("pk").values_list("pk", flat=True)[:MAX_NAMED])
            found.append(sentence(f"{jobs_listed(numbers, count)} {one if count == 1 else many}"))
    uses: tuple[tuple[list[str], Callable[[str], str]], ...] = (
        (
            list(
                Schedule.objects.filter(environment=environment, project__deleted_at=None).values_list(
                    "name", flat=True
                )
            ),
            lambda names: f"schedules submit jobs with it: {names}",
        ),
        (
            list(environment.extended_by.filter(retired=False).values_list("title", flat=True)),
            lambda names: f"environments add packages to it: {names}",
        ),
    )
    found += [sentence(words(listed(names))) for names, words in uses if names]
    same = Environment.objects.filter(recipe=environment.recipe, retired=False).exclude(pk=environment.pk)
    shared = not environment.recipe or same.exists()
    return Use(found, jobs.exclude(state__in=UNFINISHED_STATES).count(), 0 if shared else _bytes_of(environment))


def _bytes_of(environment: Environment) -> int:
    locks = environment.builds.filter(lock__isnull=False).values_list("lock", "lock__archive_bytes").distinct()
    return sum(size for _, size in locks)


@transaction.atomic
def remove(user: User, environment: Environment) -> None:
    """Remove an environment. Raises Refused while something needs it."""
    services.require_manager(user, environment)
    row = Environment.objects.select_for_update(of=("self",)).get(pk=environment.pk)
    if problems := use_of(row).hindrances:
        raise Refused(" ".join(problems), "conflict")
    services.remove(user, row, 0)
