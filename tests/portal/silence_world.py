"""Running jobs whose ranks print, and a clock that stands still until a test moves it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.utils import timezone

from portal.cluster.models import Node
from portal.jobs import logs
from portal.jobs import silence_check as look
from portal.jobs.models import Container, Job
from tests.portal import jobs_world as world
from tests.portal.outbox import deliver

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Lab:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cache.clear()
        self.now = NOON
        monkeypatch.setattr(timezone, "now", lambda: self.now)
        self.alice = world.make_user("alice", email="alice@example.org")
        self.project = world.make_project(self.alice)

    def passes(self, minutes: float, in_contact: bool = True) -> None:
        self.now += timedelta(minutes=minutes)
        if in_contact:
            Node.objects.update(last_seen_at=self.now)

    def node(self, name: str = "gpu-1", gpus: int = 2) -> Node:
        return world.make_node(name, gpus)

    def job(self, nodes: Sequence[Node], **fields: Any) -> Job:
        """It runs from now on, on one GPU of each node, with a driver."""
        row = world.make_job(self.project, submitted_at=self.now, **fields)
        free = [node.gpus.exclude(allocations__released_at=None, allocations__isnull=False)[0] for node in nodes]
        attempt = world.place(row, free, driver=True)
        for part in attempt.containers.all():
            world.run(part)
        row.refresh_from_db()
        return row

    def prints(self, job: Job, text: str = "step\n", host: int = 0, stream: str = "0") -> None:
        part = Container.objects.get(attempt__job=job, attempt__ended_at=None, index=host)
        row = logs.open_stream(part, stream, f"rank {host}" if stream.isdecimal() else "")
        logs.append(row, row.size, text.encode())

    def looks(self) -> int:
        """Two looks, a minute apart, and the mails about them; how many silences were new."""
        first = look.sweep()
        self.passes(1)
        found = first + look.sweep()
        deliver()
        return found
