"""The fence: a container whose agent or portal has gone must not train on.

The portal starts an attempt anew elsewhere only after this time and a margin, so two attempts of one job never train
at once. Clocks of machines differ, so we look at nothing but the lease's content changing, on our monotonic clock.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from runners.launch.files import read_limited

T_FENCE_SECONDS = 34.0
"""A node that is cut off for 25 s keeps its jobs: its leases may be 5 s old by then, and the agent has 4 s to come back."""


def shortened(env: Mapping[str, str], variable: str, usual: float) -> float:
    """Seconds: fewer than ``usual`` where a test asks for it by a variable, never more."""
    try:
        seconds = float(env.get(variable, ""))
    except ValueError:
        return usual
    return seconds if 0.1 <= seconds <= usual else usual


class Fence:
    def __init__(
        self, lease: Path, seconds: float = T_FENCE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lease = lease
        self._seconds = seconds
        self._clock = clock
        self._content: bytes | None = None
        self._changed_at = clock()

    @classmethod
    def from_env(cls, lease: Path, env: Mapping[str, str]) -> "Fence":
        """``SCHEDULEARN_FENCE_SECONDS`` shortens the time in tests."""
        return cls(lease, shortened(env, "SCHEDULEARN_FENCE_SECONDS", T_FENCE_SECONDS))

    def expired(self) -> bool:
        """Looks at the lease. A missing or unreadable one counts as unchanged."""
        content = read_limited(self._lease)
        if content is not None and content != self._content:
            self._content = content
            self._changed_at = self._clock()
        return self._clock() - self._changed_at > self._seconds
