"""What keeps the ledger: each minute who offers what, each hour the daily sums. All may be repeated."""

from celery import shared_task

from portal.usage import capacity, rollups


@shared_task(ignore_result=True)
def look() -> None:
    capacity.record()
    capacity.record_weights()


@shared_task(ignore_result=True)
def roll_up(rebuild: bool = False) -> None:
    rollups.roll_up(rebuild=rebuild)
