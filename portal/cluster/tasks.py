"""Celery tasks of the cluster."""

from celery import shared_task

from portal.cluster import alarms


@shared_task(ignore_result=True)
def mail_admins() -> None:
    alarms.mail_admins()


shared_task(mail_admins.run, name="portal.cluster.tasks.tell_admins", ignore_result=True)
"""The name of the release before, which its scheduler may have queued."""
