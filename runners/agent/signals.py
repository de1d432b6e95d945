"""A request to stop, which a signal handler can set at any moment."""

import os
import select
import signal
from types import FrameType


class StopSignal:
    """A flag that SIGTERM or SIGINT sets, and that stays set.

    It is a byte in a pipe, which the interpreter itself writes when a signal arrives, on whichever thread the kernel
    chose. A Python handler could not do this: it runs in the main thread only, between two steps. If another thread gets
    the signal, a handler that should end a wait of the main thread runs only after the wait; and a handler that takes a
    lock (that of a ``threading.Event``) may wait for a lock that its own thread holds. Any other signal with a Python
    handler in this process would set the flag as well.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        if numbers:
            signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, _ignore_signal)

    def set(self) -> None:
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            pass  # the pipe is full, so the flag is set

    def is_set(self) -> bool:
        return self.wait(0)

    def wait(self, seconds: float | None = None) -> bool:
        """Return True once it is set, False when the time is over before. Any number of threads may wait."""
        return bool(select.select([self._read], [], [], seconds)[0])


def _ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: without a handler the signal would end the process and wake no thread."""
