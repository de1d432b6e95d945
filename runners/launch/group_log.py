"""The history of an attempt's rank groups: which hosts formed each one, when, and what the change cost. For the job's page.

The cost is what the ranks themselves measure (``shim``): the time from their last commit before a change to the first
one after it, less the usual time between two commits. It includes the time in which a rank waits for a lost one. Where
ranks are restarted (``torch_group``), their supervisors measure it by the steps of the optimizer (``restart_costs``).
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

MAX_GROUPS = 20
"""How many groups are kept here, the latest ones. The agent reports them every few seconds, and the portal keeps all."""


@dataclass
class FormedGroup:
    number: int
    at: float
    """Unix time by this node's clock."""
    hosts: tuple[str, ...]
    """The host of each rank."""
    cost_seconds: float | None = None
    """None until a rank of the group before has reported it."""


class GroupLog:
    """The latest rank groups of an attempt. ``on_change`` is called after each change, from any thread."""

    def __init__(self, on_change: Callable[[], None], clock: Callable[[], float] = time.time) -> None:
        self._on_change = on_change
        self._clock = clock
        self._lock = threading.Lock()
        self._groups: list[FormedGroup] = []
        self._count = 0

    def record_group(self, hosts: Sequence[str]) -> None:
        with self._lock:
            self._count += 1
            self._groups = [*self._groups[1 - MAX_GROUPS :], FormedGroup(self._count, self._clock(), tuple(hosts))]
        self._on_change()

    def record_resume(self, milliseconds: int) -> None:
        """Record that a rank trains again, and after how long. The slowest rank counts."""
        with self._lock:
            if not self._groups:
                return
            last = self._groups[-1]
            last.cost_seconds = max(last.cost_seconds or 0.0, milliseconds / 1000)
        self._on_change()

    def restarts_without_commit(self) -> int:
        """Count the latest restarts on the same hosts without a commit between them."""
        with self._lock:
            count = 0
            for before, group in reversed(list(pairwise(self._groups))):
                if group.cost_seconds is not None or group.hosts != before.hosts:
                    break
                count += 1
            return count

    def to_json(self) -> list[dict[str, Any]]:
        """Return the groups as status.json has them."""
        with self._lock:
            return [
                {"number": group.number, "at": group.at, "hosts": group.hosts, "cost_seconds": group.cost_seconds}
                for group in self._groups
            ]
