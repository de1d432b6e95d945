"""Whether somebody watches a job's log: then its nodes send each line at once, and else a handful at a time.

A hint that is forgotten after some seconds; without Redis it is known in this process only, which is the one that all
viewers and agents talk to.
"""

from django.core.cache import cache

WATCHED_SECONDS = 10.0
"""For so long after it was last said."""


def watch(job_id: int) -> None:
    cache.set(_key(job_id), True, WATCHED_SECONDS)


def watched(job_id: int) -> bool:
    return bool(cache.get(_key(job_id)))


def _key(job_id: int) -> str:
    return f"job-watched:{job_id}"
