"""Being told to stop, in a way that a signal may say at any moment."""

import os
import select
import signal


class StopSignal:
    """Set by SIGTERM or SIGINT, for ever.

    Not a ``threading.Event``: a handler runs in the main thread between any two steps of it, also while that thread
    holds the Event's lock (in ``wait``, or in the handler of the signal before), and would then wait for itself.
    A byte in a pipe needs no lock.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._told = False
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in numbers:
            signal.signal(number, lambda *_: self.set())

    def set(self) -> None:
        self._told = True
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            pass  # the pipe is full of the same word

    def is_set(self) -> bool:
        return self._told

    def wait(self, seconds: float | None = None) -> bool:
        """True once told to stop, False when the time was up before. Any number of threads may wait."""
        if not self._told:
            select.select([self._read], [], [], seconds)
        return self._told
