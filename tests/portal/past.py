"""What happened before a test: attempts that held GPUs and ended, with their first lines."""

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from portal.cluster.models import Node
from portal.jobs.models import Allocation, Attempt, Container, Job, LogStream
from portal.jobs.resize_timeline.models import RankGroup
from tests.portal.control_world import queue


def attempt(job: Job, node: Node, gpus: int, start: datetime, end: datetime, outcome: str, first_line: float) -> None:
    number = job.attempts.count() + 1
    tried = Attempt.objects.create(
        job=job, number=number, created_at=start, started_at=start, ended_at=end, outcome=outcome, secret="s"
    )
    part = Container.objects.create(
        attempt=tried, node=node, index=0, role="host", name=f"past-{tried.pk}", spec={}, assigned_at=start,
        state="EXITED", exited_at=end,
    )  # fmt: skip
    first_at = start + timedelta(seconds=first_line)
    LogStream.objects.create(container=part, name="setup", first_at=start + timedelta(seconds=1))
    LogStream.objects.create(container=part, name="0", first_at=first_at)
    for gpu in node.gpus.all()[:gpus]:
        Allocation.objects.create(gpu=gpu, attempt=tried, container=part, allocated_at=start, released_at=end)


def ran(
    node: Node, gpus: int, seconds: float, end: datetime | None = None, first_line: float = 5, **fields: Any
) -> Job:
    """A job that held so many GPUs for so long and succeeded."""
    end = end or timezone.now() - timedelta(hours=1)
    job = queue(gpus, state="SUCCEEDED", finished_at=end, **fields)
    attempt(job, node, gpus, end - timedelta(seconds=seconds), end, "succeeded", first_line)
    return job


def changed(job: Job, *costs: float | None) -> None:
    """A minute before its end its ranks formed rings, which kept them from training for so many seconds."""
    part = Container.objects.filter(attempt__job=job).latest("pk")
    assert part.exited_at is not None
    at = part.exited_at - timedelta(minutes=1)
    for number, cost in enumerate(costs, start=1):
        RankGroup.objects.create(driver=part, number=number, at=at, hosts=["h0"], cost_seconds=cost)
