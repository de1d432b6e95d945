"""Celery tasks. They may be repeated and may run at once."""

from celery import shared_task

from portal.deletion import code_versions


@shared_task(ignore_result=True)
def tidy() -> None:
    """Erase what has been in the trash for long enough, once an hour. Jobs are erased by ``portal.scheduler.tasks.tidy``."""
    code_versions.erase_due()
