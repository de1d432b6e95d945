"""Which job holds which GPU."""

from collections.abc import Collection, Iterable

from django.db.models import Prefetch, QuerySet

from portal.accounts.models import User
from portal.cluster.models import LIVE_NODE, Gpu, Node
from portal.environments.models import Environment, NodeEnvironment
from portal.jobs.models import Allocation, Job

_LIVE_ALLOCATIONS = "live_allocations"


def nodes_with_gpus(user: User) -> list[Node]:
    """Return the lab's nodes with their GPUs, the holders of these and the environments that a user may see, in four queries."""
    gpus = with_holders(Gpu.objects.filter(present=True))
    known = Environment.objects.visible_to(user).filter(retired=False)
    environments = NodeEnvironment.objects.filter(environment__in=known).select_related("environment", "node")
    environments = environments.order_by("environment__position", "environment__key")
    return list(
        Node.objects.filter(LIVE_NODE).prefetch_related(Prefetch("gpus", gpus), Prefetch("environments", environments))
    )


def gpus_of(nodes: Iterable[Node]) -> list[Gpu]:
    """Return all GPUs of nodes that came from ``nodes_with_gpus``."""
    return [gpu for node in nodes for gpu in node.gpus.all()]


def with_holders(gpus: QuerySet[Gpu]) -> QuerySet[Gpu]:
    """Return the same GPUs, which ``holder`` can then be asked about without a query for each."""
    live = Allocation.objects.filter(released_at=None).select_related(
        "attempt__job__submitted_by", "attempt__job__project"
    )
    return gpus.prefetch_related(Prefetch("allocations", live, to_attr=_LIVE_ALLOCATIONS))


def holder(gpu: Gpu) -> Job | None:
    """Return the job that holds a GPU that came from ``with_holders`` or ``nodes_with_gpus``."""
    live: list[Allocation] = getattr(gpu, _LIVE_ALLOCATIONS)
    return live[0].attempt.job if live else None


def visible_job_ids(user: User, job_ids: Collection[int]) -> set[int]:
    """Return which of these jobs the user may see, in one query."""
    return set(Job.objects.visible_to(user).filter(pk__in=set(job_ids)).values_list("pk", flat=True))


def visible_holders(user: User, gpus: Collection[Gpu]) -> set[int]:
    """Return which of the jobs that hold these GPUs the user may see, in one query."""
    return visible_job_ids(user, {job.pk for gpu in gpus if (job := holder(gpu))})
