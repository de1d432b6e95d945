"""Which jobs use an environment: for its pages, and for what may be deleted."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, DateTimeField, IntegerField, Max, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from portal.accounts.models import User
from portal.environments.models import Environment
from portal.jobs.models import Container, Job
from portal.jobs.states import UNFINISHED_STATES, ContainerState


def unfinished_jobs_of(environment: Environment) -> int:
    """Return how many jobs that use an environment have not ended, those on hold included."""
    return Job.objects.filter(environment=environment, state__in=UNFINISHED_STATES).count()


def with_use(environments: QuerySet[Environment], user: User) -> QuerySet[Environment]:
    """Annotate environments with ``job_count`` and ``used_at``: the number of the jobs that the user may see, and when one last
    began to wait or ended."""
    mine = Job.objects.visible_to(user).filter(environment=OuterRef("pk")).order_by().values("environment")
    return environments.annotate(
        job_count=Coalesce(Subquery(mine.annotate(n=Count("pk")).values("n"), output_field=IntegerField()), 0),
        used_at=Subquery(mine.annotate(last=_last_use()).values("last"), output_field=DateTimeField()),
    )


def _last_use() -> Any:
    return Max(Coalesce("finished_at", "submitted_at"))


@dataclass(frozen=True, slots=True)
class Use:
    """What jobs need of environments."""

    last: Mapping[int, datetime]
    """When a job last used an environment, by its number."""
    busy: frozenset[int]
    """The environments of jobs that have not ended or are kept."""
    layers: frozenset[str]
    """The digests of the layers that containers have, and of those with which kept jobs ran."""


def current_use() -> Use:
    """Return what jobs use, in three queries."""
    last = Job.objects.order_by().values_list("environment").annotate(last=_last_use())
    needing = Job.objects.filter(Q(state__in=UNFINISHED_STATES) | Q(kept=True))
    busy = needing.order_by().values_list("environment", flat=True).distinct()
    needed = ~Q(state=ContainerState.EXITED) | Q(attempt__job__kept=True)
    live = Container.objects.filter(needed).values_list("spec__layer", flat=True)
    return Use(dict(last), frozenset(busy), frozenset(digest for digest in live if digest))
