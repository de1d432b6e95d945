"""Tells admins what needs them."""

from celery import shared_task

from portal.cluster import alarms


@shared_task(ignore_result=True)
def tell_admins() -> None:
    alarms.tell()
