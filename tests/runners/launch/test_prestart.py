"""Ranks that start before their driver is up: they load meanwhile, and the driver then uses these processes.

Real supervisors; the Horovod of their ranks only prints the rank and the size of the group.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runners.launch import network
from runners.launch.files import ContainerPaths, Control, Host
from runners.launch.group_host_worker import GroupHostWorker
from runners.launch.host_worker import Verdict, WorkerContext
from runners.launch.hosts import Hosts
from runners.launch.joining_ranks import ASKS_FOR_PLACE
from runners.launch.log_writer import LogWriter
from runners.launch.prestart import PrestartedRanks, expected_slots
from runners.launch.processes import Processes, Wakeup
from runners.launch.rendezvous import Routes, Server, serve
from runners.messages.launch import LacksHosts, LeftJob, RankEnded
from tests.runners.launch.test_static_group import containers_of
from tests.runners.launching import Attempt, Container, attempt, local_group, until

BASICS = """
import os
class HorovodBasics:
    def init(self):
        print("rank", os.environ["HOROVOD_RANK"], "of", os.environ["HOROVOD_SIZE"], flush=True)
"""
TRAINS = """
import os, time
print("loading as", os.environ["HOROVOD_RANK"], flush=True)
from horovod.common.basics import HorovodBasics
HorovodBasics().init()
"""


def prepare(containers: list[Container]) -> None:
    """Write the list of hosts to every container, as its agent would, and add the Horovod from above."""
    hosts = [(container.spec.hostname, container.spec.slots) for container in containers if container.spec.slots]
    for container in containers:
        container.tell(hosts=hosts)
        package = container.workspace / "horovod" / "common"
        package.mkdir(parents=True, exist_ok=True)
        (package / "basics.py").write_text(BASICS)


# Which ranks a host expects


def test_a_host_derives_its_ranks_from_the_hosts_of_the_group() -> None:
    hosts = [Host("h1", 2), Host("h2", 1)]
    assert [(slot.rank, slot.size, slot.local_rank) for slot in expected_slots(hosts, "h1", 2)] == [
        (0, 3, 0),
        (1, 3, 1),
    ]
    assert [(slot.rank, slot.cross_rank, slot.cross_size) for slot in expected_slots(hosts, "h2", 1)] == [(2, 1, 2)]


@pytest.mark.parametrize(("name", "count"), [("h3", 1), ("h1", 1), ("h2", 2)])
def test_a_host_that_is_not_listed_with_its_slots_expects_no_ranks(name: str, count: int) -> None:
    assert expected_slots([Host("h1", 2), Host("h2", 1)], name, count) == []
    assert expected_slots([], name, count) == []


def test_a_slot_is_unclaimed_from_its_prestart_until_the_driver_claims_it() -> None:
    prestarted = PrestartedRanks()
    prestarted.expect("0")
    prestarted.expect("1")
    prestarted.record_exit("1", 127)
    assert prestarted.unclaimed_slots() == ["0", "1"]
    assert prestarted.claim("0", {"HOROVOD_RANK": "4"}) is None
    assert prestarted.claim("1", {}) == 127
    assert prestarted.unclaimed_slots() == []
    assert prestarted.wait_for_place("0") == {"HOROVOD_RANK": "4"}
    prestarted.record_exit("0", 0)
    assert prestarted.wait_for_place("0") is None  # a rank that asks now was started by the driver


def test_of_a_group_that_trains_only_the_driver_knows_the_place() -> None:
    prestarted = PrestartedRanks()
    prestarted.expect("0")
    prestarted.claim("0", {ASKS_FOR_PLACE: "1"})
    assert prestarted.wait_for_place("0") is None
    assert prestarted.wait_for_place("7") is None


def test_the_network_of_a_group_is_known_before_its_driver_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "localhost")
    assert network.own_address_in("driver.invalid", 21_000) == "127.0.0.1"
    assert network.own_address_in("127.0.0.9", 21_000) == "127.0.0.1"


# With real supervisors and a real driver


def test_ranks_load_before_there_is_a_driver_and_are_the_ones_it_asks_for(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        driver, h1, h2 = containers = containers_of(made, TRAINS, 2, 1, start=False)
        prepare(containers)
        h1.start()
        h2.start()
        until(lambda: "loading as 1" in h1.log("1") and "loading as 2" in h2.log("0"))
        assert "rank" not in h1.log("0")
        driver.start()
        assert driver.wait() == {"code": 0, "reason": "exited", "detail": ""}
        assert (h1.wait()["code"], h2.wait()["code"]) == (0, 0)
    logs = [h1.log("0"), h1.log("1"), h2.log("0")]
    assert logs == [f"loading as {rank}\nrank {rank} of 3\n" for rank in range(3)]
    assert h1.labels() == {"setup": "set-up", "0": "rank 0", "1": "rank 1"}


def test_a_rank_that_fails_before_there_is_a_driver_fails_the_attempt(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        driver, host = containers = containers_of(made, "raise SystemExit(9)", 1, start=False)
        prepare(containers)
        host.start()
        until(lambda: "ended with exit code 9" in host.log("setup"))
        driver.start()
        exit = driver.wait()
        assert exit == Verdict(9, "exited", RankEnded(0, "h1", 9)).to_json()
        assert host.wait()["code"] == 9


def test_a_program_that_does_not_exist_fails_the_attempt(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        group = local_group(1, 1)
        command = ("no-such-program",)
        driver = made.container(command, "horovod", "driver", "driver", 0, group)
        host = made.container(command, "horovod", "host", "h1", 1, group)
        prepare([driver, host])
        host.start()
        driver.start()
        assert driver.wait()["code"] == 127
        assert "could not be started" in host.log("setup")


def test_ranks_that_wait_for_their_driver_end_when_the_job_is_stopped(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        containers = containers_of(made, TRAINS, 1, start=False)
        host = containers[1]
        prepare(containers)
        host.start()
        until(lambda: "loading" in host.log())
        host.tell(stop={"reason": "cancelled", "grace_seconds": 60}, hosts=[("h1", 1)])
        assert host.wait(30)["reason"] == "stopped"


def test_ranks_that_wait_for_their_driver_end_with_their_lease(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        containers = containers_of(made, TRAINS, 1, start=False)
        host = containers[1]
        prepare(containers)
        host.start(SCHEDULEARN_FENCE_SECONDS="2")
        until(lambda: "loading" in host.log())
        host.stop_renewing()
        assert host.wait(30)["reason"] == "fenced"


# With a driver that the test plays


class Played:
    """A driver whose answers the test decides, and a host with one slot."""

    def __init__(self, made: Attempt) -> None:
        group = local_group(1, 2)
        command = ("python", "-c", TRAINS)
        self.host = made.container(command, "horovod", "host", "h1", 1, group, elastic=True)
        self.hosts = Hosts()
        self.asked: list[tuple[str, int]] = []
        routes = Routes(poll=self.hosts.poll, record_exit=self.hosts.record_exit, first_place=self.first_place)
        self.server: Server = serve(group.secret, routes, "127.0.0.1", group.port)
        prepare([self.host])
        self.host.start()
        until(lambda: "loading" in self.host.log() and self.hosts.connected_slots())

    def first_place(self, host: str, slot: int) -> dict[str, str]:
        self.asked.append((host, slot))
        return {"HOROVOD_RANK": "5", "HOROVOD_SIZE": "6"}


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    with attempt(tmp_path) as made:
        one = Played(made)
        yield one
        one.server.shutdown()
        one.server.server_close()


def test_a_prestarted_rank_of_a_group_that_trains_asks_its_driver(played: Played) -> None:
    env = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", ASKS_FOR_PLACE: "1"}
    run = played.hosts.start("h1", 0, 1, env)
    until(run.ended.is_set)
    assert (run.code, played.asked) == (0, [("h1", 0)])
    assert played.host.log() == "loading as 0\nrank 5 of 6\n"
    assert played.host.labels()["0"] == "rank 1"


def test_a_prestarted_rank_learns_from_its_driver_that_it_is_another_one(played: Played) -> None:
    run = played.hosts.start("h1", 0, 1, {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"})
    until(run.ended.is_set)
    assert (run.code, played.asked) == (0, [])
    assert played.host.log() == "loading as 0\nrank 1 of 2\n"


def test_a_host_that_is_not_needed_ends_its_prestarted_ranks(played: Played) -> None:
    played.hosts.release("h1")
    assert played.host.wait(30) == Verdict(0, "stopped", LeftJob()).to_json()


def test_a_group_that_is_over_before_it_began_ends_prestarted_ranks(played: Played) -> None:
    played.hosts.end_attempt(1, LacksHosts(2, 120))
    exit = played.host.wait(30)
    assert exit == Verdict(1, "exited", LacksHosts(2, 120)).to_json()


def test_a_slot_starts_another_rank_after_its_prestarted_one(played: Played) -> None:
    first = played.hosts.start("h1", 0, 1, {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"})
    until(first.ended.is_set)
    second = played.hosts.start("h1", 0, 0, {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"})
    until(second.ended.is_set)
    assert played.host.log().endswith("loading as 0\nrank 0 of 1\n")


@contextmanager
def worker_of_a_host(folder: Path) -> Iterator[tuple[GroupHostWorker, Container]]:
    """The worker of a host without a driver, and its container. The test calls the worker instead of a supervisor."""
    with attempt(folder) as made:
        containers = containers_of(made, TRAINS, 1, start=False)
        host = containers[1]
        prepare(containers)
        paths = ContainerPaths(host.control, host.scribe, host.workspace, folder, host.outputs, host.checkpoints)
        control, logs, processes = Control(host.control), LogWriter(host.scribe), Processes()
        control.refresh()
        context = WorkerContext(host.spec, paths, control, logs, processes, dict(os.environ))
        assert host.spec.collective is not None
        worker = GroupHostWorker(context, host.spec.collective, Wakeup())
        try:
            yield worker, host
        finally:
            processes.signal(signal.SIGKILL)
            until(lambda: processes.reap() or not processes.running())
            worker.close()
            logs.close()


def test_a_prestarted_rank_is_expected_before_its_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may ask for its place before the supervisor's thread continues."""
    with worker_of_a_host(tmp_path) as (worker, _):
        expected: list[list[str]] = []

        def start_rank(*_: object) -> int:
            expected.append(worker._prestarted.unclaimed_slots())
            return 127

        monkeypatch.setattr(WorkerContext, "start_rank", start_rank)
        worker.begin()
        assert expected == [["0"]]


def test_a_driver_that_never_comes_ends_the_attempt_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runners.launch.group_host_worker.FORM_SECONDS", 0.5)
    with worker_of_a_host(tmp_path) as (worker, host):
        worker.begin()
        assert worker.context.processes.running() == {"0"}

        def verdict() -> Any:
            worker.tick()
            return worker.verdict()

        assert until(verdict).reason == "launch_error"
        assert "did not answer within" in host.log("setup")
    assert json.loads((host.scribe / "log" / "streams.json").read_text())["0"] == {"label": "rank 0"}
