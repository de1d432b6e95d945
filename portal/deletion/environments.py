"""Removing environments: what needs one, and what could not be repeated without it.

It is hidden from new jobs; its row stays, since jobs refer to it, and its packages are deleted once no job needs them.
"""

from dataclasses import dataclass

from django.db import transaction

from portal.accounts.models import User
from portal.deletion.words import about_jobs, first_of, listed, sentence
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
        numbers, count = first_of(rows)
        if count:
            found.append(sentence(about_jobs(numbers, count, one, many)))
    schedules = Schedule.objects.filter(environment=environment, project__deleted_at=None)
    if names := list(schedules.values_list("name", flat=True)):
        found.append(sentence(f"schedules submit jobs with it: {listed(names)}"))
    if titles := list(environment.extended_by.filter(retired=False).values_list("title", flat=True)):
        found.append(sentence(f"environments add packages to it: {listed(titles)}"))
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
