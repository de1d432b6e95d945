"""Once an hour, and may be repeated."""

from celery import shared_task

from portal.gauges import rollups


@shared_task(ignore_result=True)
def roll_up() -> None:
    rollups.roll_up()
