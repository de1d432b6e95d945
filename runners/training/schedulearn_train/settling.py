"""Threads of gloo and Horovod still let go of a collective's tensors and callbacks when nobody waits for it any more.

For those that belong to Python they need its lock. Where the process ends meanwhile, Python ends such a thread by force,
for which C++ ends the process with SIGABRT ("terminate called without an active exception"): a training that was done
would have failed. Where the process forks meanwhile, the child may wait for ever for what the thread held: CPython
before 3.11.10 does (its issue 112275).
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

LOOK_SECONDS = 0.002
MOST_SECONDS = 2.0
"""Of waiting for threads: some of the user's may never rest."""


def settle() -> None:
    """Waits until no other thread of this process has anything to do. To be called when all collectives are over."""
    until, idle = time.monotonic() + MOST_SECONDS, 0
    # One that waited for Python's lock looked idle, too, but not again: it could have the lock during the sleep.
    while idle < 2 and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        idle = idle + 1 if all(state == "S" for state in _others()) else 0


def _others() -> Iterator[str]:
    """The kernel's letter for each other thread, of which S is "asleep". None where the kernel does not tell."""
    own = str(threading.get_native_id())
    for place in Path("/proc/self/task").glob("*"):
        try:
            told = (place / "stat").read_text() if place.name != own else ""
        except OSError:
            continue  # it has ended
        if told:
            yield told.rpartition(")")[2].split()[0]
