"""Recordings of scheduling cycles: the snapshots and the plans, so that ``manage.py replay`` can decide them again.

Only cycles with a row in ``Cycle`` are recorded; at most ``settings.RECORDED_TURNS`` are kept, and none for longer than
``settings.RECORDED_DAYS``.
"""

import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from portal.scheduler.models import Cycle, Recording
from scheduling import wire
from scheduling.types import Plan, Snapshot

LEVEL = 1
"""The zlib level. A snapshot of 1,000 jobs is 700 KiB of JSON; level 3 makes it 5 % smaller in five times the time."""
READ_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class RecordedCycle:
    """A recorded cycle. ``plan`` is None when the policy made none that could be applied; ``cycle.error`` has the reason."""

    cycle: Cycle
    snapshot: Snapshot
    plan: Plan | None


def sha256_of(text: str) -> str:
    """Return the digest that identifies a snapshot by its text."""
    return hashlib.sha256(text.encode()).hexdigest()


def keep(cycle: Cycle, snapshot: str, plan: Plan | None) -> None:
    """Store the snapshot, given as text, and the plan of a cycle."""
    planned = json.dumps(wire.plan_to_json(plan), separators=(",", ":")) if plan else "null"
    content = zlib.compress(f'{{"snapshot":{snapshot},"plan":{planned}}}'.encode(), LEVEL)
    Recording.objects.create(cycle=cycle, at=cycle.at, content=content)


def read_recordings(since: datetime | None = None) -> Iterator[RecordedCycle]:
    """Yield recorded cycles, the oldest first, read in batches."""
    # Ordered by the column: "cycle" would use the order of its table, the newest first.
    rows = Recording.objects.select_related("cycle__config").order_by("cycle_id")
    if since is not None:
        rows = rows.filter(at__gte=since)
    for row in rows.iterator(chunk_size=READ_AT_ONCE):
        content = json.loads(zlib.decompress(row.content))
        plan = content["plan"]
        yield RecordedCycle(
            row.cycle, wire.snapshot_from_json(content["snapshot"]), None if plan is None else wire.plan_from_json(plan)
        )


def delete_old(now: datetime | None = None) -> int:
    """Delete the recordings that are too old or too many; return how many were deleted."""
    oldest = (now or timezone.now()) - timedelta(days=settings.RECORDED_DAYS)
    gone = Recording.objects.filter(at__lt=oldest).delete()[0]
    last = Recording.objects.order_by("-cycle").values_list("cycle", flat=True)[settings.RECORDED_TURNS :].first()
    return gone + (Recording.objects.filter(cycle__lte=last).delete()[0] if last is not None else 0)
