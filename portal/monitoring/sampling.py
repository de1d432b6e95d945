"""From agents' reports to samples: the first report of a node in each slot is kept, so no clock and no memory is needed."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from portal.cluster.models import Node
from portal.monitoring.models import Sample

SLOT = timedelta(seconds=15)
"""Agents report every 5 s; a lab of 500 nodes gives 33 rows a second like this."""


class Reading(NamedTuple):
    """One GPU at one moment. None: the device does not say, as CPU slots never do."""

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


def keep(node: Node, now: datetime, readings: Iterable[Reading]) -> None:
    """One insert. Of two reports at once, one is kept."""
    if sample := sample_of(readings):
        Sample.objects.bulk_create([Sample(node=node, at=slot_of(now), readings=sample)], ignore_conflicts=True)


def sample_of(readings: Iterable[Reading]) -> list[list[int | None]]:
    """``Sample.readings``, by the numbers of the GPUs: empty when there is nothing to keep."""
    return [list(reading) for reading in sorted(readings, key=lambda each: each.gpu) if not reading.is_empty]
