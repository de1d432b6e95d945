"""Carries out queued simulations (``portal.celery`` has the schedule)."""

import threading

from celery import shared_task
from django.conf import settings
from django.db import connection

from portal.whatif import services

_starting = threading.Lock()
_thread: threading.Thread | None = None
"""Of this process, in the small size: there tasks run in the thread that keeps the schedule, which must go on."""


@shared_task(ignore_result=True)
def work() -> None:
    """May be repeated and may run twice at once: simulations are claimed one at a time."""
    global _thread
    if settings.LAB:
        services.carry_on()
        return
    with _starting:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_carry_on, name="simulations", daemon=True)
            _thread.start()


def _carry_on() -> None:
    try:
        services.carry_on()
    finally:
        connection.close()
