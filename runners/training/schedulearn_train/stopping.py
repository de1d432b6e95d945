"""Has this rank been told to go? By the portal's notice, or by SIGTERM as anywhere else."""

import json
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

_told = threading.Event()
_before: Any = None


class Stopped(SystemExit):  # noqa: N818
    """This job has to go. Its checkpoint is written; the program ends with 0."""


@dataclass(frozen=True)
class Notice:
    reason: str
    """``preempted``, ``drained``, ``held``, ``cancelled``, ``timed_out``, ``resized``, ...; ``signal`` without a portal."""
    grace_seconds: float
    """From now until this process is killed."""


def listen() -> None:
    """From now on SIGTERM only sets a flag, after which a handler that was there before is called. In the main thread."""
    global _before
    before = signal.getsignal(signal.SIGTERM)
    if before is _on_signal or threading.current_thread() is not threading.main_thread():
        return
    _before = before
    signal.signal(signal.SIGTERM, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    _told.set()
    if callable(_before):
        _before(number, frame)


def notice() -> Notice | None:
    """Why this rank has to go and how long it may still take; None while it may stay."""
    path = os.environ.get("SCHEDULEARN_NOTICE")
    try:
        said = json.loads(Path(path).read_text()) if path else None
    except (OSError, ValueError):
        said = None
    if isinstance(said, dict):
        left = float(said.get("until", 0.0)) - time.time()
        # A clock that was set since makes nothing longer than the whole grace period.
        return Notice(str(said.get("reason", "")), max(0.0, min(left, float(said.get("grace_seconds", left)))))
    return Notice("signal", 0.0) if _told.is_set() else None


def should_stop() -> bool:
    """For a loop of one's own: save and leave when this says so. All ranks together must agree on it."""
    return notice() is not None
