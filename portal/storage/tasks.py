"""Checks versions of datasets that wait (``portal.celery`` has the schedule)."""

import threading

from celery import shared_task
from django.conf import settings
from django.db import connection

from portal.storage import checking, collecting

_starting = threading.Lock()
_thread: threading.Thread | None = None
"""The thread for checks in the small size: tasks run in the scheduling thread there, which must not be blocked."""


@shared_task(ignore_result=True)
def check() -> None:
    """Check versions that wait. May be repeated and may run twice at once: versions are claimed one at a time."""
    global _thread
    if settings.LAB:
        _work()
        return
    with _starting:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_work_in_thread, name="dataset checks", daemon=True)
            _thread.start()


def _work() -> None:
    checking.run_queued()
    collecting.delete_blobs_of_killed_checks()


def _work_in_thread() -> None:
    try:
        _work()
    finally:
        connection.close()
