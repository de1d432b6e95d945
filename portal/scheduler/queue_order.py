"""Places in the queue, and the number of jobs ahead in the reasons of waiting jobs: computed together.

A policy counts the jobs ahead in its own order (the shortest first, for example) and in one layer of tiers only. A place
that is counted differently would contradict that sentence.
"""

import heapq
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scheduling.toolkit import reasons
from scheduling.types import Job

AHEAD = re.compile(r"\b(\d+) jobs? (?:is|are) ahead of it\b")
"""Matches the count that ``scheduling.toolkit.reasons.jobs`` writes."""
TIERS = ("premium", "standard", "basic")


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """The reason and the place that a waiting job shows."""

    reason: str
    place: int
    """1 for the first of the queue."""


def queue_entries(jobs: Iterable[Job], why: Mapping[int, str]) -> dict[int, QueueEntry]:
    """Return the place of each job in ``why``, and its reason with as many jobs ahead as there are before that place.

    Jobs are ordered by tier, priority and submission, but each is behind at least as many others as its policy counted.
    """
    waiting = sorted((job for job in jobs if int(job.id) in why), key=_rank)
    counts = [_counted(why[int(job.id)]) for job in waiting]
    coming = sorted(range(len(waiting)), key=counts.__getitem__, reverse=True)
    ready: list[int] = []
    found: dict[int, QueueEntry] = {}
    for position in range(len(waiting)):
        while coming and (counts[coming[-1]] <= position or not ready):
            heapq.heappush(ready, coming.pop())
        index = heapq.heappop(ready)
        ahead, job = max(position, counts[index]), int(waiting[index].id)
        text = f"{reasons.jobs(ahead)} ahead of it"
        found[job] = QueueEntry(AHEAD.sub(text, why[job], count=1) if counts[index] else why[job], ahead + 1)
    return found


def _rank(job: Job) -> tuple[bool, int, tuple[int, float, str]]:
    return job.opportunistic, TIERS.index(job.tier), job.queue_key


def _counted(reason: str) -> int:
    match = AHEAD.search(reason)
    return int(match[1]) if match else 0
