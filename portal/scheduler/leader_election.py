"""Leader election when several schedulers run: one leads, the others stand by and take over when it is gone.

The lock only keeps two from working against each other. What makes it safe is the epoch: taking the lead raises
it, and every transaction of a cycle checks it, so that a scheduler that was replaced while it slept writes nothing.
"""

import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import IO

from django.conf import settings
from django.db import DatabaseError, Error, connection, transaction
from django.db.models import F
from django.utils import timezone

from portal.scheduler.models import Leader

LOCK = 0x5C4ED_1EAD
"""PostgreSQL's session lock of the leader: freed by the server the moment our connection is gone."""


class Leadership:
    """A scheduler's claim to lead. ``epoch`` is None while it stands by."""

    def __init__(self, lock_file: Path | None = None) -> None:
        self.epoch: int | None = None
        self._lock_file = lock_file or settings.HOME / "scheduler.lock"
        self._file: IO[str] | None = None

    def take(self) -> bool:
        """Try to take the lead and return whether we lead now. Never waits for the present leader."""
        if self.epoch is None and self._lock():
            self.epoch = self._next_epoch()
        return self.epoch is not None

    def release(self) -> None:
        """Give up the lead, so that another scheduler takes over at once. Harmless without the lead or a connection."""
        self.epoch = None
        if self._file is not None:
            self._file.close()
            self._file = None
        if connection.vendor == "postgresql" and connection.connection is not None:
            with suppress(DatabaseError), connection.cursor() as cursor:
                # The server frees the lock of a closed connection too, but later.
                cursor.execute("SELECT pg_advisory_unlock(%s)", [LOCK])
            connection.close()

    def resign(self) -> None:
        """Give up the lead at the end of the program, and let no page name it as the present leader."""
        if self.epoch is not None:
            with suppress(Error):
                Leader.objects.filter(pk=1, epoch=self.epoch).update(holder="")
        self.release()

    def _lock(self) -> bool:
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_try_advisory_lock(%s)", [LOCK])
                return bool(cursor.fetchone()[0])
        file = self._lock_file.open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._file = file
        return True

    def _next_epoch(self) -> int:
        with transaction.atomic():
            Leader.objects.get_or_create(pk=1)
            holder = f"{socket.gethostname()} pid {os.getpid()}"[:120]
            Leader.objects.filter(pk=1).update(epoch=F("epoch") + 1, holder=holder, since=timezone.now())
            return Leader.objects.get(pk=1).epoch
