"""Tasks of the ledger: they record offered GPUs every minute and make daily sums every hour. All may be repeated."""

from celery import shared_task

from portal.usage import capacity, rollups


@shared_task(ignore_result=True)
def look() -> None:
    capacity.record()
    capacity.record_weights()


@shared_task(ignore_result=True)
def roll_up(rebuild: bool = False) -> None:
    rollups.roll_up(rebuild=rebuild)
