"""What the driver decides and reports, without processes."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runners.launch import driver as module
from runners.launch import hosts as hosts_module
from runners.launch.driver import MAX_EXIT_GAP_SECONDS, Driver
from runners.launch.files import ContainerPaths, Control
from runners.launch.log_writer import LogWriter
from runners.messages.launch import HostsDidNotCome
from runners.spec import CollectiveGroup
from tests.runners.conftest import make_spec


class Stage:
    """A driver with its files, and hosts that poll it when the test makes them."""

    def __init__(self, home: Path, elastic: bool) -> None:
        self.control_file = home / "control.json"
        self.logs = LogWriter(home / "scribe")
        self.log_file = home / "scribe" / "log" / "setup.log"
        group = CollectiveGroup("127.0.0.1", 1, "secret", 1 if elastic else 2, 2)
        spec = make_spec(
            role="driver", hostname="driver", slots=0, launcher="horovod", collective=group, elastic=elastic
        )
        paths = ContainerPaths.from_env({"SCHEDULEARN_SCRIBE": str(home / "scribe"), "SCHEDULEARN_CONTROL": str(home)})
        self.driver = Driver(spec, paths, Control(home), self.logs)

    def offer(self, *names: str) -> None:
        self.control_file.write_text(json.dumps({"hosts": [{"name": name, "slots": 1} for name in names]}))
        self.driver.control.refresh()

    def poll(self, name: str) -> list[dict[str, Any]]:
        answer = self.driver.hosts.poll({"host": name, "slots": 1, "boot": "b", "seen": 0})
        found: list[dict[str, Any]] = answer["commands"]
        return found

    def log(self) -> str:
        return self.log_file.read_text()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_module, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(module, "TICK_SECONDS", 0.02)


@pytest.fixture
def elastic(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path, elastic=True)
    yield stage
    stage.logs.close()


@pytest.fixture
def static(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path, elastic=False)
    yield stage
    stage.logs.close()


def test_an_elastic_group_does_not_wait_for_ever_for_all_its_hosts(
    elastic: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.1)
    elastic.offer("h1", "h2")
    elastic.poll("h1")
    assert elastic.driver._wait_for_hosts() is None
    assert "Starting without h2, which may join later" in elastic.log()


def test_a_static_group_without_all_its_hosts_is_our_error(static: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(module, "FORM_SECONDS", 0.2)
    static.offer("h1", "h2")
    static.poll("h1")
    verdict = static.driver._wait_for_hosts()
    assert verdict is not None
    assert (verdict.reason, verdict.message) == ("launch_error", HostsDidNotCome(("h2",), 0, 0))


def test_no_report_of_a_supervisor_writes_to_disk(elastic: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken in with the lock of the hosts, which all other supervisors wait for."""
    written: list[int] = []

    def write(_path: Path, _status: object) -> None:
        assert not elastic.driver.hosts._changed._is_owned()  # type: ignore[attr-defined]
        written.append(threading.get_ident())

    monkeypatch.setattr(module, "write_json", write)
    elastic.offer("h1")
    elastic.poll("h1")
    run = elastic.driver.hosts.start("h1", 0, 0, {})
    elastic.driver._record_group(["h1"])
    elastic.driver.hosts.record_exit({"run": run.number, "code": 0, "cost_ms": 900})
    assert written == []
    elastic.driver._write_changed_status()
    elastic.driver._write_changed_status()
    assert written == [threading.get_ident()]
    assert elastic.driver.group_log.to_json()[0]["cost_seconds"] == 0.9


def test_a_removed_host_is_asked_to_leave_once(elastic: Stage) -> None:
    elastic.offer("h1", "h2")
    elastic.poll("h1")
    elastic.poll("h2")
    elastic.poll("h9")  # its name is still on the way
    elastic.driver._watch()
    elastic.offer("h1")
    for _ in range(3):
        elastic.driver._watch()
    assert [command["do"] for command in elastic.poll("h2")] == ["leave"]
    assert elastic.poll("h1") == elastic.poll("h9") == []
    assert elastic.log().count("h2 leaves the job") == 1


def test_a_rank_that_ended_long_before_the_others_is_pointed_out_once(elastic: Stage) -> None:
    elastic.offer("h1", "h2")
    for name in ("h1", "h2"):
        elastic.poll(name)
    hosts = elastic.driver.hosts
    early, _ = hosts.start("h1", 0, 0, {}), hosts.start("h2", 0, 1, {})
    hosts.record_exit({"run": early.number, "code": 0})
    elastic.driver._watch()
    assert "ended normally" not in elastic.log()
    early.ended_at -= MAX_EXIT_GAP_SECONDS + 1
    for _ in range(3):
        elastic.driver._watch()
    assert elastic.log().count("slot 0 of h1 ended normally while others still run") == 1


@pytest.mark.parametrize(
    ("ending", "code", "removed", "reason"),
    [
        ("", 1, False, "exited"),
        ("stopped", 143, False, "stopped"),
        ("fenced", 143, False, "fenced"),
        ("stopped", 134, True, "exited"),  # its host had been removed before, so this is not why the group broke
        ("stopped", 0, False, "exited"),
    ],
)
def test_the_exit_reason_of_a_group_depends_on_what_ended_its_ranks(
    elastic: Stage, ending: str, code: int, removed: bool, reason: str
) -> None:
    elastic.offer("h1", "h2")
    elastic.poll("h1")
    elastic.poll("h2")
    elastic.driver._watch()
    run = elastic.driver.hosts.start("h2", 0, 1, {})
    if removed:
        elastic.offer("h1")
        elastic.driver._watch()
    elastic.driver.hosts.record_exit({"run": run.number, "code": code, "ending": ending})
    assert elastic.driver._exit_reason(1) == reason
    assert elastic.driver._exit_reason(0) == "exited"
