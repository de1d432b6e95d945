"""Runs queued simulations (``portal.celery`` has the schedule)."""

import threading

from celery import shared_task
from django.conf import settings
from django.db import connection

from portal.whatif import services

_starting = threading.Lock()
_thread: threading.Thread | None = None
"""The thread for simulations in the small size: tasks run in the scheduling thread there, which must not be blocked."""


@shared_task(ignore_result=True)
def work() -> None:
    """Run queued simulations. May be repeated and may run twice at once: simulations are claimed one at a time."""
    global _thread
    if settings.LAB:
        services.run_queued()
        return
    with _starting:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run_queued, name="simulations", daemon=True)
            _thread.start()


def _run_queued() -> None:
    try:
        services.run_queued()
    finally:
        connection.close()
