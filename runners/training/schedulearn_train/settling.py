"""Waits for the threads of gloo and Horovod, which still release tensors and callbacks after a collective operation.

For Python objects they need Python's lock. If the process ends meanwhile, Python ends such a thread by force, for which C++
ends the process with SIGABRT ("terminate called without an active exception"), and a finished training would have failed.
If the process forks meanwhile, the child may wait forever for a lock of the thread: CPython before 3.11.10 does (its issue
112275).
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

CHECK_SECONDS = 0.002
MAX_SECONDS = 2.0
"""The longest wait: some of the user's threads may never be idle."""


def settle() -> None:
    """Wait until all other threads of this process are idle. Call it after the last collective operation."""
    until, idle = time.monotonic() + MAX_SECONDS, 0
    # A thread that waits for Python's lock looks idle once, but not twice: it gets the lock during the sleep.
    while idle < 2 and time.monotonic() < until:
        time.sleep(CHECK_SECONDS)
        idle = idle + 1 if all(state == "S" for state in _other_thread_states()) else 0


def _other_thread_states() -> Iterator[str]:
    """Yield the kernel's state letter of each other thread, S for sleeping. Yields nothing where there is no /proc."""
    own = str(threading.get_native_id())
    for place in Path("/proc/self/task").glob("*"):
        try:
            stat = (place / "stat").read_text() if place.name != own else ""
        except OSError:
            continue  # it has ended
        if stat:
            yield stat.rpartition(")")[2].split()[0]
