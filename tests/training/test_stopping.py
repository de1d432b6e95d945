"""A rank's notice: how long it may still take, also when the clock was set since it was written."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runners.training.schedulearn_train import stopping


@pytest.mark.parametrize(
    ("set_by", "minimum", "maximum"), [(0, 8, 10), (3600, 0, 0), (-3600, 10, 10), (-86_400, 10, 10)]
)
def test_no_clock_makes_the_grace_period_longer(
    set_by: float, minimum: float, maximum: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, now = tmp_path / "notice.json", 1_790_000_000.0
    file.write_text(json.dumps({"reason": "drained", "grace_seconds": 10, "until": now + 10}))
    monkeypatch.setenv("SCHEDULEARN_NOTICE", str(file))
    monkeypatch.setattr(time, "time", lambda: now + set_by + 1)
    notice = stopping.notice()
    assert notice is not None and notice.reason == "drained" and minimum <= notice.grace_seconds <= maximum


LOOP = """
import sys, time
from runners.training.schedulearn_train.stopping import should_stop
print(should_stop(), flush=True)
until = time.monotonic() + 60
while not should_stop() and time.monotonic() < until:
    time.sleep(0.01)
print("saved", flush=True)
"""


def test_a_loop_that_asks_is_not_killed_by_the_signal() -> None:
    with subprocess.Popen([sys.executable, "-c", LOOP], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "False\n"
        process.terminate()
        assert process.stdout.read() == "saved\n"
    assert process.returncode == 0
