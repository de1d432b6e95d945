"""Keeps the rank groups that drivers report. A report repeats the latest groups, and later ones know more of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from portal.jobs.models import Container, RankGroup
from portal.wake import wake_job_viewers

MAX_GROUPS = 1000
"""Of one driver. A group takes seconds to form: more come from code that never gets to train."""


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A rank group, from a driver's report."""

    number: int
    at: datetime
    hosts: tuple[str, ...]
    cost_seconds: float | None


def store_groups(driver: Container, reports: Sequence[GroupReport]) -> None:
    """Store new groups, and costs that have become known. A repeated report changes nothing."""
    known = {row.number: row for row in RankGroup.objects.filter(driver=driver)}
    new = [
        RankGroup(driver=driver, number=each.number, at=each.at, hosts=list(each.hosts), cost_seconds=each.cost_seconds)
        for each in reports
        if each.number not in known
    ]
    room = max(0, MAX_GROUPS - len(known))
    RankGroup.objects.bulk_create(new[:room], ignore_conflicts=True)
    changed = False
    for each in reports:
        row = known.get(each.number)
        if row is not None and row.cost_seconds != each.cost_seconds and each.cost_seconds is not None:
            changed = bool(RankGroup.objects.filter(pk=row.pk).update(cost_seconds=each.cost_seconds)) or changed
    if new[:room] or changed:
        wake_job_viewers(driver.attempt.job_id)
