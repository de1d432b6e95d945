"""Linux namespaces that live as long as the process that made them: a machine of a test, or the place of a whole run.

The first process in them reads a pipe that only their maker holds. When the maker dies, even by kill -9, the pipe
closes, the first process ends, and the kernel removes what was made inside: interfaces, mounts, processes.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

FIRST_PROCESS = """
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps orphans
print("up", flush=True)
sys.stdin.buffer.read()
"""


def children(pid: int) -> list[int]:
    """Child processes of all its threads."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        try:
            found += [int(child) for child in (thread / "children").read_text().split()]
        except OSError:
            pass
    return found


class Space:
    """New namespaces of the given kinds (``--net``, ``--mount``, ...), after ``setup`` has run in them."""

    def __init__(self, *kinds: str, setup: str = "") -> None:
        first = [sys.executable, "-c", FIRST_PROCESS]
        inside = ["sh", "-c", f'{setup} exec "$@"', "sh", *first] if setup else first
        self._held = subprocess.Popen(
            ["unshare", *kinds, "--fork", "--kill-child", "--", *inside],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it complains at its end
            start_new_session=True,
        )
        assert self._held.stdout is not None and self._held.stdout.readline() == b"up\n", (
            "unshare failed: are you root?"
        )
        (self.pid,) = children(self._held.pid)

    def enter(self, *kinds: str) -> list[str]:
        """The words to put before a command to run it inside."""
        return ["nsenter", "--target", str(self.pid), *kinds, "--"]

    def end(self) -> None:
        """Everything inside dies, without a warning."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        assert self._held.stdin is not None and self._held.stdout is not None
        self._held.stdin.close()
        self._held.wait(60)
        self._held.stdout.close()
