"""One thread at a time, bounded waiting, and the guard that watches the locks of the agent."""

import threading
from pathlib import Path

import pytest

from runners.host.exclusive import BusyError, ExclusiveSection
from tests.runners.lock_guard import guarded


def test_the_second_thread_gets_an_error_or_waits() -> None:
    section, inside, leave = ExclusiveSection("sending files"), threading.Event(), threading.Event()

    def slow() -> None:
        with section.enter():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=slow)
    thread.start()
    assert inside.wait(60)
    for seconds in (0.0, 0.01):
        with pytest.raises(BusyError, match="Another thread is sending files"), section.enter(seconds):
            pass
    leave.set()
    with section.enter(60):
        pass
    thread.join()


def test_an_error_leaves_the_section() -> None:
    section = ExclusiveSection("sending files")
    with pytest.raises(ValueError, match="no"), section.enter():
        raise ValueError("no")
    with section.enter():
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
