"""Keeps what drivers tell of their rings. They tell the latest again and again, and more of each with time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from portal.jobs.models import Container
from portal.monitoring.models import Ring
from portal.wake import wake_job_viewers

MOST_RINGS = 1000
"""Of one driver. A ring takes seconds to form: this many is some code that goes round in circles."""


@dataclass(frozen=True, slots=True)
class Told:
    number: int
    at: datetime
    hosts: tuple[str, ...]
    cost_seconds: float | None


def keep(driver: Container, told: Sequence[Told]) -> None:
    """May be repeated. What is no news writes nothing."""
    known = {row.number: row for row in Ring.objects.filter(driver=driver)}
    new = [
        Ring(driver=driver, number=ring.number, at=ring.at, hosts=list(ring.hosts), cost_seconds=ring.cost_seconds)
        for ring in told
        if ring.number not in known
    ]
    room = max(0, MOST_RINGS - len(known))
    Ring.objects.bulk_create(new[:room], ignore_conflicts=True)
    changed = False
    for ring in told:
        row = known.get(ring.number)
        if row is not None and row.cost_seconds != ring.cost_seconds and ring.cost_seconds is not None:
            changed = bool(Ring.objects.filter(pk=row.pk).update(cost_seconds=ring.cost_seconds)) or changed
    if new[:room] or changed:
        wake_job_viewers(driver.attempt.job_id)
