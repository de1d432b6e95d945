"""Celery tasks. They may be repeated and may run at once."""

from datetime import timedelta

from celery import shared_task
from django.utils import timezone

from portal.schedules import running
from portal.schedules.models import ScheduleRun

KEEP_RUNS = timedelta(days=400)


@shared_task(ignore_result=True)
def run_due() -> None:
    running.run_due()


@shared_task(ignore_result=True)
def tidy() -> None:
    """Delete the runs of more than a year ago."""
    ScheduleRun.objects.filter(at__lt=timezone.now() - KEEP_RUNS).delete()
