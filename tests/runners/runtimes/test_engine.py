"""The engine that test runs share."""

import threading
from pathlib import Path

import pytest

from tests import engine


def test_a_second_run_reports_that_it_waits_until_the_first_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path))
    order: list[str] = []

    def second() -> None:
        with engine.alone():
            order.append("second")

    with engine.alone():
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        order.append("first")
    waiting.join(60)
    assert order == ["first", "second"]
    assert capsys.readouterr().err == "Another test run has the engine of this machine: waiting until it ends.\n"
