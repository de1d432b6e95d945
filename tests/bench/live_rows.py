"""The functions of ``live`` that run inside the portal it measures: they create past jobs and read the results.

Run by ``manage.py shell`` of that portal, so Django is set up.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from portal.cluster.models import Node
from portal.environments.models import Environment
from portal.jobs.models import Allocation, Attempt, Container, Job
from portal.projects.models import Project
from portal.scheduler.recording import read_recordings
from scheduling import wire
from scheduling.types import Snapshot

PAST = "past"
"""The description of the past jobs that never really ran."""


def write_past(project: int, specs: Sequence[tuple[Mapping[str, Any], float]]) -> None:
    """Create, for each job of the trace, a past one of the same program and arguments with its seconds on one GPU.

    Policies that go by the work left estimate it by these, as in a lab that has run such jobs before.
    """
    node, owned = Node.objects.get(), Project.objects.get(pk=project)
    environments = {each.key: each for each in Environment.objects.all()}
    end = timezone.now() - timedelta(hours=1)
    for spec, seconds in specs:
        start = end - timedelta(seconds=seconds)
        job = Job.objects.create(
            project=owned, code=owned.code_versions.get(), environment=environments[spec["environment"]],
            submitted_by=owned.created_by, submitted_at=start, name="past", description=PAST, state="SUCCEEDED",
            started_at=start, finished_at=end, launcher=spec["launcher"], entry=spec["entry"],
            arguments=spec.get("arguments", []), time_limit_seconds=spec["time_limit_seconds"],
        )  # fmt: skip
        attempt = Attempt.objects.create(
            job=job, number=1, created_at=start, started_at=start, ended_at=end, outcome="succeeded", secret="past"
        )  # fmt: skip
        part = Container.objects.create(
            attempt=attempt, node=node, index=0, role="host", name=f"past-{job.pk}", spec={}, assigned_at=start,
            state="EXITED", exited_at=end, collected_at=end,
        )  # fmt: skip
        gpu = node.gpus.order_by("index")[0]
        Allocation.objects.create(gpu=gpu, attempt=attempt, container=part, allocated_at=start, released_at=end)


def print_facts() -> None:
    """Print a line of JSON: the rows of each job, and when and how the policy first saw it."""
    first: dict[str, Snapshot] = {}
    for turn in read_recordings():
        for seen in turn.snapshot.jobs:
            first.setdefault(seen.id, Snapshot(turn.snapshot.now, (), (seen,)))
    facts = {
        job.pk: {
            "ended": _seconds(job.finished_at),
            "attempts": [_held(attempt) for attempt in job.attempts.order_by("number")],
            "first": json.loads(wire.snapshot_to_text(first[str(job.pk)])),
        }
        for job in Job.objects.exclude(description=PAST)
    }
    print(json.dumps(facts))


def _held(attempt: Attempt) -> list[list[float | None]]:
    rows: Iterable[Allocation] = attempt.allocations.order_by("pk")
    return [[_seconds(row.allocated_at), _seconds(row.requested_back_at), _seconds(row.released_at)] for row in rows]


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
