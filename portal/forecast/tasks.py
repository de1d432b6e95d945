"""Scores and forecasts every half minute (``portal.celery`` has the schedule)."""

from celery import shared_task
from django.core.cache import cache

from portal.forecast import services
from portal.scheduler.job_history import History

MIN_INTERVAL_SECONDS = 25
"""The minimum time between two runs, even with several workers or after a delay of the queue."""

_history = History()
"""The history that this process has read."""


@shared_task(ignore_result=True)
def refresh() -> None:
    """Score and forecast. May be repeated and may run twice at once."""
    if cache.add("forecast-refresh", True, MIN_INTERVAL_SECONDS):
        services.refresh(history=_history)
