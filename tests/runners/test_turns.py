"""One thread at a time, nobody waits longer than it wants to, and the guard that watches the agent's locks sees them."""

import threading
from pathlib import Path

import pytest

from runners.turns import BusyError, Turn
from tests.runners.lock_guard import guarded


def test_the_second_is_told_and_may_wait_for_a_while() -> None:
    turn, inside, leave = Turn("sending files"), threading.Event(), threading.Event()

    def slow() -> None:
        with turn.taken():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=slow)
    thread.start()
    assert inside.wait(60)
    for seconds in (0.0, 0.01):
        with pytest.raises(BusyError, match="Something else is sending files just now"), turn.taken(seconds):
            pass
    leave.set()
    with turn.taken(60):
        pass
    thread.join()


def test_a_turn_ends_with_the_error_of_its_work() -> None:
    turn = Turn("sending files")
    with pytest.raises(ValueError, match="no"), turn.taken():
        raise ValueError("no")
    with turn.taken():
        pass


def test_the_guard_sees_a_slow_call_under_a_lock_and_lets_others_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code = compile("import threading\nlock = threading.Lock()\nbell = threading.Condition()\n", "made.py", "exec")
    with pytest.MonkeyPatch.context() as patch, guarded(patch) as guard:
        ours, others = {"__name__": "runners.made"}, {"__name__": "elsewhere"}
        exec(code, ours)  # noqa: S102
        exec(code, others)  # noqa: S102
        with others["lock"]:  # type: ignore[attr-defined]
            (tmp_path / "file").read_text()
        assert not guard.broken
        for lock in (ours["lock"], ours["bell"]):
            with lock:  # type: ignore[attr-defined]
                threading.Thread(target=(tmp_path / "file").read_text).run()
            (tmp_path / "file").read_text()
    assert len(guard.broken) == 2
    assert all("open" in line and "runners.made:" in line for line in guard.broken)
