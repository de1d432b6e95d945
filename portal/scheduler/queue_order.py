"""Places in the queue, and the number of jobs ahead in the reasons of waiting jobs: computed together.

A policy counts the jobs ahead in its own order (the shortest first, for example) and in one layer of tiers only. A place
that is counted differently would contradict that sentence.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scheduling.messages import Message
from scheduling.toolkit.reasons import ahead_of, with_ahead
from scheduling.types import Job

TIERS = ("premium", "standard", "basic")


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """The reason and the place that a waiting job shows."""

    reason: Message
    place: int
    """1 for the first of the queue."""


def queue_entries(jobs: Iterable[Job], why: Mapping[int, Message]) -> dict[int, QueueEntry]:
    """Return the place of each job in ``why``, and its reason with as many jobs ahead as there are before that place.

    Jobs are ordered by tier, priority and submission, but each is behind at least as many others as its policy counted.
    """
    waiting = sorted((job for job in jobs if int(job.id) in why), key=_rank)
    counts = [ahead_of(why[int(job.id)]) for job in waiting]
    coming = sorted(range(len(waiting)), key=counts.__getitem__, reverse=True)
    ready: list[int] = []
    found: dict[int, QueueEntry] = {}
    for position in range(len(waiting)):
        while coming and (counts[coming[-1]] <= position or not ready):
            heapq.heappush(ready, coming.pop())
        index = heapq.heappop(ready)
        ahead, job = max(position, counts[index]), int(waiting[index].id)
        found[job] = QueueEntry(with_ahead(why[job], ahead) if counts[index] not in (0, ahead) else why[job], ahead + 1)
    return found


def _rank(job: Job) -> tuple[bool, int, tuple[int, float, str]]:
    return job.opportunistic, TIERS.index(job.tier), job.queue_key
