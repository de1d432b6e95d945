"""The fence: it ends the ranks of a container that has lost its agent or the portal.

The portal starts an attempt elsewhere only after this time and a margin, so two attempts of one job never train at
once. Clocks of machines differ, so only changes of the lease's content count, measured on our monotonic clock.

A lease contains the time at which the report that renewed it was sent, on the same clock when agent and container share a
kernel. It counts from then, so a late answer of the portal renews a lease too, for correspondingly less time.
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from runners.launch.files import read_limited

T_FENCE_SECONDS = 34.0
"""A node that is cut off for 25 s keeps its jobs: its leases may be 5 s old by then, and the agent has 4 s to reconnect."""


def seconds_from_env(env: Mapping[str, str], variable: str, default: float) -> float:
    """Return ``default``, or the fewer seconds that a test sets by a variable."""
    try:
        seconds = float(env.get(variable, ""))
    except ValueError:
        return default
    return seconds if 0.1 <= seconds <= default else default


BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
COUNTS_FROM_REPORT = "report"
"""The value of ``lease`` in status.json: with it the agent may also renew the lease by a late reply."""


def lease_content(renewal: int, sent_at: float, boot_id_file: Path = BOOT_ID_FILE) -> bytes:
    """Return a lease renewed by the reply to a report sent at ``sent_at``, in seconds of ``time.monotonic``."""
    return json.dumps({"renewal": renewal, "sent_at": sent_at, "boot": _read_boot_id(boot_id_file)}).encode()


def _read_boot_id(boot_id_file: Path) -> str:
    """Return the id of the boot from which the monotonic clock counts; "" where it is not known."""
    return (read_limited(boot_id_file) or b"").decode("ascii", "replace").strip()


class Fence:
    """Watches a lease, which expires ``seconds`` after its last renewal."""

    def __init__(
        self,
        lease: Path,
        seconds: float = T_FENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        boot_id_file: Path = BOOT_ID_FILE,
    ) -> None:
        self._lease = lease
        self._seconds = seconds
        self._clock = clock
        self._boot = _read_boot_id(boot_id_file)
        self._content: bytes | None = None
        self._renewed_at = clock()

    @classmethod
    def from_env(cls, lease: Path, env: Mapping[str, str]) -> "Fence":
        """Make a fence with the default time. ``SCHEDULEARN_FENCE_SECONDS`` shortens it in tests."""
        return cls(lease, seconds_from_env(env, "SCHEDULEARN_FENCE_SECONDS", T_FENCE_SECONDS))

    def has_expired(self) -> bool:
        """Read the lease and return whether it has expired. A missing or unreadable one counts as unchanged."""
        content = read_limited(self._lease)
        if content is not None and content != self._content:
            self._content = content
            self._renewed_at = max(self._renewed_at, self._renewal_time(content))
        return self._clock() - self._renewed_at > self._seconds

    def _renewal_time(self, content: bytes) -> float:
        """Return when a lease that has just changed was renewed: now, or the earlier time on this clock that it contains."""
        now = self._clock()
        try:
            lease = json.loads(content)
            sent_at = float(lease["sent_at"])
            known = lease["boot"] == self._boot != ""
        except (ValueError, TypeError, KeyError, RecursionError):
            return now  # an agent of an earlier release renews leases by prompt replies only
        return min(now, sent_at) if known else now
