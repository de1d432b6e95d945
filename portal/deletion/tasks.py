"""Celery tasks. They may be repeated and may run at once."""

from celery import shared_task

from portal.deletion import code_versions, projects
from portal.deletion.people import erasing


@shared_task(ignore_result=True)
def tidy() -> None:
    """Erase what has been in the trash for long enough, once an hour. Jobs are erased by ``portal.scheduler.tasks.tidy``."""
    code_versions.erase_due()
    projects.erase_due()


@shared_task(ignore_result=True)
def erase_people() -> None:
    """Go on with the erasures of people, once a minute."""
    erasing.go_on()
