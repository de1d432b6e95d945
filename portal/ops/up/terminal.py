"""The terminal output of ``make run``: lines that stay, and one line of progress that is replaced."""

import shutil
import threading
import time
from collections.abc import Callable
from typing import Protocol

PIPE_SECONDS = 20.0
"""In a file or pipe, the progress of the same thing is written at most this often."""
CLEAR = "\r\x1b[K"


class Output(Protocol):
    def write(self, text: str) -> object: ...
    def flush(self) -> object: ...
    def isatty(self) -> bool: ...


class Terminal:
    """A terminal for several threads: each line is written whole, and the progress line stays the last one."""

    def __init__(self, output: Output, clock: Callable[[], float] = time.monotonic) -> None:
        self._output = output
        self._clock = clock
        self._rewrites = output.isatty()
        self._lock = threading.Lock()
        self._progress = ""
        self._subject = ""
        self._written_at = float("-inf")

    def print(self, text: str) -> None:
        """Write lines that stay."""
        with self._lock:
            self._write(f"{CLEAR}{text}\n{self._fitted()}" if self._rewrites and self._progress else f"{text}\n")

    def progress(self, subject: str, detail: str = "") -> None:
        """Replace the progress line; an empty subject removes it."""
        text = f"{subject}: {detail}" if detail else subject
        with self._lock:
            if text == self._progress:
                return
            self._progress = text
            if self._rewrites:
                self._write(f"{CLEAR}{self._fitted()}")
            elif text and (subject != self._subject or self._clock() >= self._written_at + PIPE_SECONDS):
                self._subject, self._written_at = subject, self._clock()
                self._write(f"{text}\n")

    def _fitted(self) -> str:
        width = shutil.get_terminal_size().columns - 1
        return self._progress if len(self._progress) <= width else f"{self._progress[: width - 1]}…"

    def _write(self, text: str) -> None:
        try:
            self._output.write(text)
            self._output.flush()
        except UnicodeEncodeError:
            self._write(text.encode("ascii", "replace").decode())
        except (OSError, ValueError):
            pass  # the reader has gone, or the disk is full; the portal keeps running
