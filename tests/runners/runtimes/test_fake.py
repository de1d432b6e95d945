"""The pretended runtime writes what a supervisor would, so that an agent can be tested against it."""

import json
import struct
import time
from pathlib import Path

import pytest

from runners.runtime import CreateError, EngineError, Folders
from runners.runtimes.fake import FENCE_SECONDS, FailingRuntime, FakeRuntime, SlowRuntime, StuckRuntime
from tests.runners.conftest import make_spec


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def started(runtime: FakeRuntime, folders: Folders, **env: str) -> str:
    spec = make_spec(env=tuple(env.items()))
    runtime.create(spec, folders)
    runtime.start(spec.name)
    return spec.name


def exit_of(folders: Folders) -> dict[str, object]:
    found: dict[str, object] = json.loads((folders.scribe / "exit.json").read_text())
    return found


def test_it_runs_for_the_requested_seconds(clock: Clock, folders: Folders) -> None:
    runtime = FakeRuntime(clock)
    started(runtime, folders, FAKE_RUN_SECONDS="5", FAKE_EXIT_CODE="3", FAKE_OUTPUT="epoch 1\n")
    clock.now = 4.9
    assert [seen.state for seen in runtime.list()] == ["running"]
    assert not (folders.scribe / "exit.json").exists()
    clock.now = 5
    assert [(seen.state, seen.exit_code) for seen in runtime.list()] == [("exited", 3)]
    assert exit_of(folders) == {"code": 3, "reason": "exited", "detail": ""}


def test_it_writes_a_log_with_marks_and_labels(clock: Clock, folders: Folders) -> None:
    started(FakeRuntime(clock), folders, FAKE_OUTPUT="epoch 1\n")
    log = folders.scribe / "log"
    assert (log / "0.log").read_bytes() == b"epoch 1\n"
    offset, milliseconds = struct.unpack("<QQ", (log / "0.idx").read_bytes())
    assert offset == 0 and abs(milliseconds / 1000 - time.time()) < 60
    assert json.loads((log / "streams.json").read_text())["0"] == {"label": "rank 0"}
    status = json.loads((folders.scribe / "status.json").read_text())
    assert status["phase"] == "running" and status["message"] == {"code": "launch.running"}


def test_it_stops_when_the_control_file_asks_for_it(clock: Clock, folders: Folders) -> None:
    runtime = FakeRuntime(clock)
    started(runtime, folders, FAKE_RUN_SECONDS="never")
    (folders.control / "control.json").write_text('{"stop": {"reason": "cancelled", "grace_seconds": 10}, "hosts": []}')
    assert [seen.state for seen in runtime.list()] == ["exited"]
    assert exit_of(folders)["reason"] == "stopped"


def test_it_fences_itself_when_the_lease_no_longer_changes(clock: Clock, folders: Folders) -> None:
    runtime = FakeRuntime(clock)
    started(runtime, folders, FAKE_RUN_SECONDS="never")
    for now in range(0, 100, 20):
        clock.now = now
        (folders.control / "lease").write_text(json.dumps({"renewal": now}))
        assert [seen.state for seen in runtime.list()] == ["running"]
    clock.now = 80 + FENCE_SECONDS + 1
    assert [seen.state for seen in runtime.list()] == ["exited"]
    assert exit_of(folders)["reason"] == "fenced"


def test_one_may_be_created_by_another_thread_while_it_lists(
    clock: Clock, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = FakeRuntime(clock)
    started(runtime, folders, FAKE_RUN_SECONDS="never")

    def meanwhile(path: Path) -> dict[str, object]:
        runtime.create(make_spec("another"), folders)
        return {}

    monkeypatch.setattr("runners.runtimes.fake.read_json", meanwhile)
    assert {seen.state for seen in runtime.list()} == {"running", "created"}


def test_a_killed_container_leaves_no_word(clock: Clock, folders: Folders) -> None:
    runtime = FakeRuntime(clock)
    name = started(runtime, folders, FAKE_RUN_SECONDS="never")
    runtime.signal(name, 9)
    assert [(seen.state, seen.exit_code) for seen in runtime.list()] == [("exited", 137)]
    assert not (folders.scribe / "exit.json").exists()


def test_it_may_die_of_its_memory(clock: Clock, folders: Folders) -> None:
    runtime = FakeRuntime(clock)
    started(runtime, folders, FAKE_OOM="1")
    (seen,) = runtime.list()
    assert seen.oom_killed and seen.exit_code == 137


def test_the_failing_kinds_fail_as_they_say(clock: Clock, folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    never = StuckRuntime(clock)
    name = started(never, folders)
    never.stop(name, 0)
    assert [seen.state for seen in never.list()] == ["created"]
    bad = FailingRuntime(("create", "list"), clock=clock)
    with pytest.raises(EngineError):
        bad.create(make_spec(), folders)
    bad.create(make_spec(), folders)
    with pytest.raises(EngineError):
        bad.list()
    assert len(bad.list()) == 1
    with pytest.raises(CreateError):
        FailingRuntime(("create",), error=CreateError("No.")).create(make_spec(), folders)
    rests: list[float] = []
    monkeypatch.setattr("runners.runtimes.fake.time.sleep", rests.append)
    SlowRuntime(0.05, clock=clock).list()
    assert rests == [0.05]
