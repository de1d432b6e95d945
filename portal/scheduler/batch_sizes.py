"""The batch size that a policy chose for a job: stored with its live attempt, and sent from there to its nodes."""

from collections.abc import Mapping

from portal.jobs.models import Attempt, Container, ContainerState
from portal.scheduler.models import ChosenBatch
from portal.wake import wake_node
from scheduling.types import JobId


def keep(batches: Mapping[JobId, int]) -> None:
    """Store the batch sizes of a plan, in the transaction that applies it. A job that it leaves out keeps its own."""
    if not batches:
        return
    live = Attempt.objects.filter(job__in=[int(job) for job in batches], ended_at__isnull=True)
    rows = live.values_list("pk", "job", "chosen__batch")
    changed = [ChosenBatch(attempt_id=pk, batch=batches[str(job)]) for pk, job, had in rows if had != batches[str(job)]]
    if not changed:
        return
    ChosenBatch.objects.bulk_create(changed, update_conflicts=True, unique_fields=["attempt"], update_fields=["batch"])
    parts = Container.objects.filter(attempt__in=[row.attempt_id for row in changed])
    for node in parts.exclude(state=ContainerState.EXITED).values_list("node", flat=True).distinct().order_by("node"):
        wake_node(node)
