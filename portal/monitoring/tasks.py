"""Tasks of every hour and every ten minutes, which may be repeated."""

from celery import shared_task

from portal.monitoring import peaks, rollups


@shared_task(ignore_result=True)
def roll_up() -> None:
    rollups.roll_up()


shared_task(roll_up.run, name="portal.gauges.tasks.roll_up", ignore_result=True)
"""The task under its name of the previous release, whose scheduler may have queued it."""


@shared_task(ignore_result=True)
def measure_peaks() -> None:
    """Measure the memory that attempts used which have ended."""
    peaks.measure()
