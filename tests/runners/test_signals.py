"""A program that is told to stop by two signals at once stops, wherever its main thread was."""

import os
import signal
import subprocess
import sys
import time

from runners.signals import StopSignal

WAITER = """
import signal
from runners.signals import StopSignal
stop = StopSignal(signal.SIGTERM, signal.SIGINT)
print("ready", flush=True)
while not stop.wait(0.0001):
    pass
stop.wait()
"""


def test_ctrl_c_and_sigterm_together_end_a_waiting_program() -> None:
    for _ in range(10):
        with subprocess.Popen([sys.executable, "-c", WAITER], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            for number in (signal.SIGINT, signal.SIGTERM) * 20:
                os.kill(process.pid, number)
            assert process.wait(10) == 0


def test_it_waits_no_longer_than_asked_and_remembers() -> None:
    stop, started = StopSignal(), time.monotonic()
    assert not stop.wait(0.05) and time.monotonic() - started >= 0.05 and not stop.is_set()
    stop.set()
    assert stop.wait() and stop.wait(0) and stop.is_set()
