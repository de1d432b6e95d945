import json
import signal
import time
from pathlib import Path

import pytest

from portal.jobs.models import StopReason
from runners.launch.supervisor import SENTENCES
from tests.runners.launching import attempt, until

POLITE = """
import json, os, signal, sys, time
def leave(number, frame):
    notice = json.load(open(os.environ["SCHEDULEARN_NOTICE"]))
    print("leaving because", notice["reason"], notice["until"] > time.time())
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up")
time.sleep(60)
"""
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("no"))
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('child up'); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
print("up")
while True:
    time.sleep(60)
"""


def test_a_stop_gives_notice_and_time(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        container = made.container(("python", "-c", POLITE)).start()
        until(lambda: "up" in container.log())
        container.tell(stop={"reason": "preempted", "grace_seconds": 60})
        exit = container.wait(30)
    assert (exit["code"], exit["reason"]) == (0, "stopped")
    assert container.log() == "up\nleaving because preempted True\n"
    assert "The scheduler takes the GPUs back: the ranks have 60 seconds to end" in container.log("setup")


def test_after_the_grace_everything_is_killed(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        container = made.container(("python", "-c", STUBBORN)).start()
        until(lambda: "child up" in container.log() and "\nup" in f"\n{container.log()}")
        began = time.monotonic()
        container.tell(stop={"reason": "cancelled", "grace_seconds": 1.5})
        exit = container.wait(30)
        assert time.monotonic() - began >= 1.4
    assert (exit["code"], exit["reason"]) == (137, "stopped")
    assert container.log().count("no\n") == 1
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            assert str(tmp_path).encode() not in environ.read_bytes()
        except OSError:
            continue


def test_every_reason_to_stop_has_a_sentence_and_no_sentence_is_idle() -> None:
    assert set(SENTENCES) == {*StopReason.values, "disk", "stopped", "fenced"}


def test_a_reason_that_is_newer_than_the_image_is_named(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        container = made.container(("python", "-c", POLITE)).start()
        until(lambda: "up" in container.log())
        container.tell(stop={"reason": "moved", "grace_seconds": 60})
        assert container.wait(30)["detail"] == "Told to stop (moved)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_stop(tmp_path: Path, number: signal.Signals) -> None:
    with attempt(tmp_path) as made:
        container = made.container(("sleep", "60")).start()
        until((container.scribe / "status.json").exists)
        assert container.process is not None
        until(lambda: '"ranks": 1' in (container.scribe / "status.json").read_text())
        container.process.send_signal(number)
        assert container.wait(30)["reason"] == "stopped"


def test_junk_in_the_control_file_is_survived_and_a_later_stop_obeyed(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        container = made.container(("python", "-c", POLITE)).start()
        until(lambda: "up" in container.log())
        for junk in ("", "{", "[]", '{"stop": 7, "hosts": "many"}', "\0" * 5000):
            container.write("control.json", junk)
            time.sleep(0.6)
            assert container.process is not None and container.process.poll() is None
        container.tell(stop={"reason": "timed_out", "grace_seconds": 60})
        assert container.wait(30)["reason"] == "stopped"


def test_a_program_that_ended_by_itself_was_not_stopped(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        container = made.container(("false",)).start()
        assert container.wait() == {"code": 1, "reason": "exited", "detail": ""}
        status = json.loads((container.scribe / "status.json").read_text())
    assert status["phase"] == "running"
