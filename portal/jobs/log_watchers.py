"""Records whether the log of a job is being watched: then its nodes send each line at once, otherwise in batches.

This is a hint that expires after some seconds. Viewers and nodes are served by different processes, which share it in
Redis, or by the time of a file in an installation without Redis.
"""

from django.conf import settings
from django.core.cache import cache

from portal.wake import notified_within, notify

WATCHED_SECONDS = 10.0
"""How long the hint is valid after the last request of a viewer."""


def watch(job_id: int) -> None:
    if settings.REDIS_URL:
        cache.set(_key(job_id), True, WATCHED_SECONDS)
    else:
        notify(_key(job_id))


def is_watched(job_id: int) -> bool:
    return bool(cache.get(_key(job_id))) if settings.REDIS_URL else notified_within(_key(job_id), WATCHED_SECONDS)


def _key(job_id: int) -> str:
    return f"watched-{job_id}"
