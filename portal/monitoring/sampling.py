"""Stores samples of reports: the first report of a node in each slot is kept, which needs no timer and no memory."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from portal.cluster.models import Node
from portal.monitoring.models import Sample

SLOT = timedelta(seconds=15)
"""The length of a slot. Agents report every 5 s; with this, a lab of 500 nodes writes 33 rows a second."""


class Reading(NamedTuple):
    """The readings of a GPU at one moment; None for what the device does not report: a CPU slot reports nothing."""

    gpu: int
    utilisation: int | None
    memory: int | None
    temperature: int | None

    @property
    def is_empty(self) -> bool:
        return self.utilisation is None and self.memory is None and self.temperature is None


def slot_of(moment: datetime) -> datetime:
    seconds = int(moment.timestamp())
    return datetime.fromtimestamp(seconds - seconds % int(SLOT.total_seconds()), UTC)


def store_sample(node: Node, now: datetime, readings: Iterable[Reading]) -> None:
    """Store a sample with one insert. Of two reports at once, one is kept."""
    if sample := sample_of(readings):
        Sample.objects.bulk_create([Sample(node=node, at=slot_of(now), readings=sample)], ignore_conflicts=True)


def sample_of(readings: Iterable[Reading]) -> list[list[int | None]]:
    """Return the value of ``Sample.readings``, in the order of the GPUs' ids: empty if there are no readings."""
    return [list(reading) for reading in sorted(readings, key=lambda each: each.gpu) if not reading.is_empty]
