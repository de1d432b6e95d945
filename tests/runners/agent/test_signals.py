"""A program that gets two signals to stop at once stops, wherever its main thread was."""

import os
import signal
import subprocess
import sys

from runners.agent.signals import StopSignal

WAITER = """
import signal, sys
from runners.agent.signals import StopSignal
stop = StopSignal(signal.SIGTERM, signal.SIGINT)
print("ready", flush=True)
while not stop.wait(0.0001):
    pass
stop.wait()
sys.stdin.read()  # it ends when all signals are sent: an interpreter that ends no longer has handlers
"""


def test_ctrl_c_and_sigterm_together_end_a_waiting_program() -> None:
    for _ in range(10):
        with subprocess.Popen([sys.executable, "-c", WAITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            for number in (signal.SIGINT, signal.SIGTERM) * 20:
                os.kill(process.pid, number)
            process.stdin.close()
            assert process.wait(60) == 0


def test_a_signal_that_the_kernel_gives_to_another_thread_ends_the_wait() -> None:
    waiter = """
import signal, threading, time
from runners.agent.signals import StopSignal
stop = StopSignal(signal.SIGTERM)
other = threading.Thread(target=time.sleep, args=(3600,), daemon=True)
other.start()
threading.Timer(0.5, signal.pthread_kill, (other.ident, signal.SIGTERM)).start()
assert stop.wait() and stop.is_set()
"""
    assert subprocess.run([sys.executable, "-c", waiter], timeout=20).returncode == 0


def test_it_waits_no_longer_than_asked_and_remembers() -> None:
    stop = StopSignal()
    assert not stop.wait(0.05) and not stop.is_set()
    stop.set()
    assert stop.wait() and stop.wait(0) and stop.is_set()
