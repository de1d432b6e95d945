"""Every half minute: scores and forecasts (``portal.celery`` has the schedule)."""

from celery import shared_task
from django.core.cache import cache

from portal.forecast import services
from portal.scheduler.job_history import History

APART_SECONDS = 25
"""Several workers, or a queue that was held up, are no reason to do it more often."""

_history = History()
"""Of this process."""


@shared_task(ignore_result=True)
def refresh() -> None:
    """May be repeated and may run twice at once."""
    if cache.add("forecast-refresh", True, APART_SECONDS):
        services.refresh(history=_history)
