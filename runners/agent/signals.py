"""Being told to stop, in a way that a signal may say at any moment."""

import os
import select
import signal
from types import FrameType


class StopSignal:
    """Set by SIGTERM or SIGINT, for ever.

    A byte in a pipe, which the interpreter itself writes the moment a signal arrives, on whichever thread the kernel
    chose. A Python handler runs in the main thread only, between two steps of it: one that should end a wait of that
    thread is not run before the wait is over when another thread got the signal, and one that takes a lock (a
    ``threading.Event``'s) may wait for what its own thread holds. Any other signal with a Python handler in this process
    would set it as well.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        if numbers:
            signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, _noted)

    def set(self) -> None:
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            pass  # the pipe is full of the same word

    def is_set(self) -> bool:
        return self.wait(0)

    def wait(self, seconds: float | None = None) -> bool:
        """True once told to stop, False when the time was up before. Any number of threads may wait."""
        return bool(select.select([self._read], [], [], seconds)[0])


def _noted(_number: int, _frame: FrameType | None) -> None:
    """A handler of our own: without one the signal would end the process, and wake nobody."""
