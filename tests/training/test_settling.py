"""Other threads' last work is waited for, not other threads."""

import hashlib
import threading
from collections.abc import Callable

import pytest

from runners.training.schedulearn_train import settling

CONTENT = bytes(100_000_000)


def compute() -> None:
    """For a while without Python's lock."""
    hashlib.sha256(CONTENT)


def beside(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_thread_that_computes_is_waited_for() -> None:
    thread = beside(compute)
    settling.settle()
    thread.join(0.01)
    assert not thread.is_alive()


def test_a_thread_that_sleeps_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    thread = beside(over.wait)
    monkeypatch.setattr(settling, "MAX_SECONDS", 3600.0)  # so that it ends for no other reason
    settling.settle()
    assert thread.is_alive()
    over.set()
    thread.join()


def test_a_thread_that_never_rests_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "MAX_SECONDS", 0.2)
    over = threading.Event()

    def computes() -> None:
        while not over.is_set():
            compute()

    thread = beside(computes)
    settling.settle()
    assert thread.is_alive()
    over.set()
    thread.join()
