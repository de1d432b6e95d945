"""Finds GPUs on which jobs fail, and moves jobs off GPUs that have failed.

A GPU is quarantined when several different jobs in a row failed on it as soon as they had started.

A job whose code failed as quickly on another GPU is no evidence against this one, and does not count. The last usable
GPU of the lab stays in use: without another to compare it with, the jobs are the likelier cause.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db.models import Q

from portal.cluster import quarantine
from portal.cluster.models import Gpu, usable_gpu
from portal.cluster.quarantine import FailsJobs, was_quarantined_for_fault_since
from portal.jobs import lifecycle
from portal.jobs.models import Allocation, Container, StopReason
from portal.jobs.rules import needed_containers
from portal.jobs.survival import remaining_containers, survival_rule_for

QUICK_FAILURE = timedelta(seconds=30)
"""The time from the start of the ranks to their failure. A script that reads its data first takes longer to fail."""
MAX_ALLOCATIONS = 20
"""The number of latest allocations of a GPU that are read."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One use of a GPU by a job, which has ended."""

    job: int
    code: int
    failed_at_once: bool
    ended_by_portal: bool = False
    """The portal ended it, which is no evidence about the GPU."""


def count_failures_in_a_row(uses: Sequence[GpuUse], failed_elsewhere: Collection[int]) -> int:
    """Count the different jobs that failed at once, from the latest back to one that did not; skip ``failed_elsewhere``."""
    jobs: set[int] = set()
    for use in uses:
        if use.ended_by_portal or (use.failed_at_once and use.code in failed_elsewhere):
            continue
        if not use.failed_at_once:
            break
        jobs.add(use.job)
    return len(jobs)


def quarantine_failing_gpus(container_ids: Collection[int]) -> list[Gpu]:
    """Quarantine the GPUs that these containers held and on which too many jobs failed; return those."""
    min_failures = settings.GPU_QUARANTINE_FAILURES
    if not min_failures:
        return []
    held = Allocation.objects.filter(container__in=container_ids, released_at__isnull=False)
    gpus = Gpu.objects.filter(usable_gpu(), kind=Gpu.Kind.CUDA, pk__in=held.values("gpu")).order_by("pk")
    taken = []
    for gpu in gpus:
        uses = _latest_uses(gpu)
        codes = {use.code for use in uses if use.failed_at_once}
        count = count_failures_in_a_row(uses, _codes_failed_elsewhere(gpu, codes)) if codes else 0
        others = Gpu.objects.filter(usable_gpu(), node__removed_at=None, node__approved_at__isnull=False)
        proven = count >= min_failures and others.exclude(pk=gpu.pk).exists()
        if proven and quarantine.quarantine(gpu, FailsJobs(count, QUICK_FAILURE.seconds)):
            taken.append(gpu)
    return taken


def move_jobs_off_faulty_gpus() -> None:
    """Take jobs off GPUs whose driver reported a grave error: they continue without these, or restart elsewhere.

    May be repeated. Takes one query when there is nothing to do.
    """
    held = Allocation.objects.filter(
        gpu__quarantined_at__isnull=False, released_at__isnull=True, container__wanted=Container.Wanted.RUN
    ).exclude(gpu__fault="")
    if not held.exists():
        return  # the usual case, and far quicker than reading all of their columns
    for row in held.select_related("gpu", "container", "attempt__job").order_by("attempt__job_id", "gpu"):
        if was_quarantined_for_fault_since(row.gpu, row.allocated_at):
            attempt, containers = row.attempt, list(row.attempt.containers.all())
            rule = survival_rule_for(attempt.job, attempt)
            needed = needed_containers(attempt.job.elastic, remaining_containers(rule, containers), rule)
            if row.container in needed:
                lifecycle.stop_attempt(attempt, StopReason.GPU_FAULT)
            else:
                lifecycle.stop_container(row.container, StopReason.GPU_FAULT)


def _latest_uses(gpu: Gpu) -> list[GpuUse]:
    rows = Allocation.objects.filter(gpu=gpu, released_at__isnull=False)
    if gpu.trusted_since is not None:
        rows = rows.filter(allocated_at__gt=gpu.trusted_since)
    rows = rows.select_related("attempt__job", "container").order_by("-released_at", "-pk")[:MAX_ALLOCATIONS]
    return [_gpu_use(row) for row in rows]


def _gpu_use(row: Allocation) -> GpuUse:
    container = row.container
    failed = container.exit_reason == "launch_error" or (
        container.exit_reason == "exited" and container.exit_code not in (0, None)
    )
    worked = container.exit_reason == "exited" and container.exit_code == 0
    began, ended = container.running_at, container.exited_at
    quick = began is None or ended is None or ended - began <= QUICK_FAILURE
    at_once = failed and quick
    return GpuUse(
        row.attempt.job_id, row.attempt.job.code_id, at_once, ended_by_portal=not at_once and not worked and quick
    )


def _codes_failed_elsewhere(gpu: Gpu, codes: Collection[int]) -> set[int]:
    """Return the codes that also failed as quickly on another GPU."""
    rows = Allocation.objects.filter(
        Q(container__exit_reason="launch_error") | Q(container__exit_reason="exited") & ~Q(container__exit_code=0),
        attempt__job__code__in=codes,
        released_at__isnull=False,
    ).exclude(gpu=gpu)
    latest = rows.select_related("attempt__job", "container").order_by("-released_at")[: MAX_ALLOCATIONS * len(codes)]
    return {use.code for use in map(_gpu_use, latest) if use.failed_at_once}
