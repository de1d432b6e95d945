"""Stop requests of this rank: the portal's notice, or SIGTERM."""

import json
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

_signalled = threading.Event()
_before: Any = None


class Stopped(SystemExit):  # noqa: N818
    """Raised to end the program, with exit status 0, after a checkpoint was written because the job has to stop.

    >>> from schedulearn_train import Stopped
    >>> try:
    ...     raise Stopped(0)
    ... except Stopped as stopped:
    ...     print(stopped.code, isinstance(stopped, SystemExit))
    0 True
    """


@dataclass(frozen=True)
class Notice:
    """A request to stop.

    >>> from schedulearn_train import Notice
    >>> Notice("preempted", grace_seconds=30.0).reason
    'preempted'
    """

    reason: str
    """``preempted``, ``drained``, ``held``, ``cancelled``, ``timed_out``, ``resized``, ...; ``signal`` without a portal."""
    grace_seconds: float
    """The time from now until this process is killed."""


def listen() -> None:
    """Make SIGTERM set a flag and then call the handler that was there before. Works in the main thread only."""
    global _before
    before = signal.getsignal(signal.SIGTERM)
    if before is _on_signal or threading.current_thread() is not threading.main_thread():
        return
    _before = before
    signal.signal(signal.SIGTERM, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    _signalled.set()
    if callable(_before):
        _before(number, frame)


def notice() -> Notice | None:
    """Return why this rank has to stop and how much time is left, or None while it may go on.

    >>> from schedulearn_train import notice
    >>> notice() is None
    True
    """
    path = os.environ.get("SCHEDULEARN_NOTICE")
    try:
        content = json.loads(Path(path).read_text()) if path else None
    except (OSError, ValueError):
        content = None
    if isinstance(content, dict):
        left = float(content.get("until", 0.0)) - time.time()
        # If the clock was set meanwhile, the time left still never exceeds the whole grace period.
        return Notice(str(content.get("reason", "")), max(0.0, min(left, float(content.get("grace_seconds", left)))))
    return Notice("signal", 0.0) if _signalled.is_set() else None


def should_stop() -> bool:
    """Return whether a training loop without ``Run`` has to save and end. Such a loop's ranks must agree on it themselves.

    From the first call on, SIGTERM no longer ends the program: the next call returns True.

    >>> from schedulearn_train import should_stop
    >>> for step in range(100):
    ...     if should_stop():
    ...         break
    >>> step
    99
    """
    listen()
    return notice() is not None
