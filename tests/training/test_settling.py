"""Other threads' last work is waited for, not other threads."""

import hashlib
import threading
import time

import pytest

from runners.training.schedulearn_train import settling


def computes(seconds: float) -> threading.Thread:
    """A thread that does, without Python's lock for most of the time."""

    def work() -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            hashlib.sha256(bytes(10_000_000))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_thread_that_computes_is_waited_for() -> None:
    thread = computes(0.3)
    settling.settle()
    thread.join(0.1)
    assert not thread.is_alive()


def test_a_thread_that_sleeps_is_not_waited_for() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait, daemon=True)
    thread.start()
    began = time.monotonic()
    settling.settle()
    assert time.monotonic() - began < settling.MOST_SECONDS
    over.set()
    thread.join()


def test_a_thread_that_never_rests_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "MOST_SECONDS", 0.2)
    thread = computes(2.0)
    settling.settle()
    assert thread.is_alive()
    thread.join()
