"""What became of an attempt's ring: who formed it when, and what each change cost. For the people who wait for it.

The cost is what the ranks themselves measured (``shim``): the time from their last commit before a change to the first
one after it, less the time that usually lies between two. A rank that waits for a lost one counts that too. Where ranks
begin anew (``torch_group``), their supervisors measure it by the steps of the optimizer (``stepclock``).
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

MAX_GROUPS = 20
"""Kept here, the latest. The agent passes them on every few seconds, and the portal remembers all."""


@dataclass
class FormedGroup:
    number: int
    at: float
    """Unix time by this node's clock."""
    hosts: tuple[str, ...]
    """The host of each rank."""
    cost_seconds: float | None = None
    """None until a rank that was in the ring before has told."""


class GroupLog:
    """``changed`` is called after each change, from whatever thread."""

    def __init__(self, changed: Callable[[], None], clock: Callable[[], float] = time.time) -> None:
        self._changed = changed
        self._clock = clock
        self._lock = threading.Lock()
        self._rings: list[FormedGroup] = []
        self._count = 0

    def formed(self, hosts: Sequence[str]) -> None:
        with self._lock:
            self._count += 1
            self._rings = [*self._rings[1 - MAX_GROUPS :], FormedGroup(self._count, self._clock(), tuple(hosts))]
        self._changed()

    def went_on(self, milliseconds: int) -> None:
        """A rank trains again. The slowest one counts."""
        with self._lock:
            if not self._rings:
                return
            last = self._rings[-1]
            last.cost_seconds = max(last.cost_seconds or 0.0, milliseconds / 1000)
        self._changed()

    def restarts_without_commit(self) -> int:
        """Count the latest restarts of the ring with the same hosts and no commit between them."""
        with self._lock:
            count = 0
            for before, ring in reversed(list(pairwise(self._rings))):
                if ring.cost_seconds is not None or ring.hosts != before.hosts:
                    break
                count += 1
            return count

    def told(self) -> list[dict[str, Any]]:
        """For status.json."""
        with self._lock:
            return [
                {"number": ring.number, "at": ring.at, "hosts": ring.hosts, "cost_seconds": ring.cost_seconds}
                for ring in self._rings
            ]
