"""The driver's side of the group: hosts, places, discovery, updates."""

import math
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from runners.launch import host_updates as updates_module
from runners.launch import hosts as module
from runners.launch.discovery import Discovery, order_hosts
from runners.launch.files import Host
from runners.launch.group_host_worker import KILL_SECONDS
from runners.launch.host_updates import (
    LATE_SECONDS,
    STALL_VARIABLE,
    HostUpdates,
    late_ranks,
    regroup_timeout_seconds,
    stall_check_seconds,
    stall_seconds,
    stuck_ranks,
)
from runners.launch.hosts import LOST_CODE, SILENT_SECONDS, Hosts, RankRun
from runners.launch.ranks import SHIM, horovod_env
from runners.launch.rendezvous import RefusedError
from runners.launch.slots import assign
from tests.runners.launching import until


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(updates_module, "WAIT_SECONDS", 0.05)


def hello(name: str, seen: int = 0, boot: str = "b", slots: int = 1) -> dict[str, Any]:
    return {"host": name, "slots": slots, "boot": boot, "seen": seen}


def hello_with(run: RankRun, **more: Any) -> dict[str, Any]:
    return {**hello("h0"), "runs": [{"run": run.number, "slot": 0, "code": None, **more}]}


def test_the_cost_of_a_change_is_passed_on_once() -> None:
    costs: list[int] = []
    hosts = Hosts(on_resumed=costs.append)
    hosts.poll(hello("h0"))
    run = hosts.start("h0", 0, 0, {})
    hosts.poll(hello_with(run))
    assert costs == []
    hosts.poll(hello_with(run, cost_ms=2500))
    hosts.poll(hello_with(run, cost_ms=2500))
    hosts.record_exit({"run": run.number, "code": 0, "cost_ms": 2500})
    assert costs == [2500]


def test_the_cost_of_a_change_is_accepted_with_the_exit_of_a_rank_but_not_after_it() -> None:
    costs: list[int] = []
    hosts = Hosts(on_resumed=costs.append)
    hosts.poll(hello("h0"))
    first, second = (hosts.start("h0", 0, 0, {}) for _ in range(2))
    hosts.record_exit({"run": first.number, "code": 0, "cost_ms": 900})
    hosts.record_exit({"run": second.number, "code": 0})
    hosts.poll(hello_with(second, cost_ms=100))
    assert costs == [900]


@pytest.mark.parametrize("cost", [-1, "1", 1.5, []])
def test_an_invalid_cost_is_refused(cost: object) -> None:
    hosts = Hosts()
    hosts.poll(hello("h0"))
    run = hosts.start("h0", 0, 0, {})
    with pytest.raises(RefusedError, match="milliseconds"):
        hosts.poll(hello_with(run, cost_ms=cost))
    with pytest.raises(RefusedError, match="milliseconds"):
        hosts.record_exit({"run": run.number, "code": 0, "cost_ms": cost})


def test_a_command_is_repeated_until_it_was_seen() -> None:
    hosts = Hosts()
    assert hosts.poll(hello("h0"))["commands"] == []
    run = hosts.start("h0", 0, 0, {"HOROVOD_RANK": "0"})
    first = hosts.poll(hello("h0"))["commands"]
    assert hosts.poll(hello("h0"))["commands"] == first  # the first answer may have been lost
    assert (first[0]["do"], first[0]["run"], first[0]["label"]) == ("start", run.number, "rank 0")
    assert hosts.poll(hello("h0", seen=first[0]["number"]))["commands"] == []


def test_an_exit_may_be_reported_twice_and_the_first_counts() -> None:
    hosts = Hosts()
    hosts.poll(hello("h0"))
    run = hosts.start("h0", 0, 0, {})
    hosts.record_exit({"run": run.number, "code": 3})
    hosts.record_exit({"run": run.number, "code": 0})
    hosts.record_exit({"run": 99, "code": 0})
    assert (run.ended.is_set(), run.code) == (True, 3)


def test_a_silent_host_is_lost_with_its_ranks() -> None:
    clock = Clock()
    hosts = Hosts(clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "POLL_SECONDS", 0.0)
        hosts.poll(hello("h0"))
        hosts.poll(hello("h1"))
        run = hosts.start("h1", 0, 1, {})
        clock.now += SILENT_SECONDS
        hosts.poll(hello("h0"))
        assert set(hosts.connected_slots()) == {"h0", "h1"}
        clock.now += 0.1
        assert set(hosts.connected_slots()) == {"h0"}
    assert (run.ended.is_set(), run.code) == (True, LOST_CODE)


def test_a_restarted_supervisor_has_lost_its_ranks() -> None:
    hosts = Hosts()
    hosts.poll(hello("h0", boot="first"))
    run = hosts.start("h0", 0, 0, {})
    assert hosts.poll(hello("h0", boot="second"))["commands"] == []
    assert (run.ended.is_set(), run.code) == (True, LOST_CODE)


def test_a_rank_on_an_unknown_host_has_ended() -> None:
    run = Hosts().start("h7", 0, 0, {})
    assert (run.ended.is_set(), run.code) == (True, LOST_CODE)


def test_the_end_waits_until_all_hosts_but_released_ones_acknowledge_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 30.0)
    clock = Clock()  # does not advance, so only the acknowledgement of h0 can end the wait
    hosts = Hosts(clock)
    with monkeypatch.context() as at_once:
        at_once.setattr(module, "POLL_SECONDS", 0.0)
        hosts.poll(hello("h0"))
        hosts.poll(hello("h1"))
    hosts.release("h1")
    ending = threading.Thread(target=hosts.end_attempt, args=(0, None))
    ending.start()
    commands = hosts.poll(hello("h0"))["commands"]
    assert [command["do"] for command in commands] == ["end"]
    hosts.wait(0.05)
    assert ending.is_alive(), "h0 was sent the command, but has not acknowledged it"
    clock.now += 0.1
    monkeypatch.setattr(module, "POLL_SECONDS", 0.0)
    hosts.poll(hello("h0", seen=len(commands)))
    ending.join(30)
    assert not ending.is_alive()


def test_the_end_waits_for_a_silent_host_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.0)
    clock = Clock()
    hosts = Hosts(clock)
    hosts.poll(hello("h0"))
    ending = threading.Thread(target=hosts.end_attempt, args=(0, "", 5.0))
    ending.start()
    until(lambda: hosts.poll(hello("h0"))["commands"])
    clock.now += 6
    hosts.poll(hello("h0"))  # each request makes the waiting thread look at the clock
    ending.join(30)
    assert not ending.is_alive()


def test_only_hosts_that_are_wanted_and_there_are_offered() -> None:
    wanted = (Host("h0", 2), Host("h1", 1), Host("h2", 1))
    discovery = Discovery(lambda: wanted, lambda: {"h0": 2, "h2": 4, "h9": 1})
    assert discovery.find_available_hosts_and_slots() == {"h0": 2, "h2": 1}


def test_old_hosts_keep_the_low_ranks() -> None:
    assert order_hosts({"h10", "h2", "h1"}, []) == ["h1", "h2", "h10"]
    assert order_hosts({"h0", "h2", "h3"}, ["h3", "h1", "h2"]) == ["h3", "h2", "h0"]


def test_ranks_of_unequal_hosts_join_the_right_groups() -> None:
    slots = assign([Host("h0", 2), Host("h1", 1), Host("h2", 2)])
    assert [(s.hostname, s.rank, s.local_rank, s.local_size, s.cross_rank, s.cross_size) for s in slots] == [
        ("h0", 0, 0, 2, 0, 3),
        ("h0", 1, 1, 2, 0, 2),
        ("h1", 2, 0, 1, 1, 3),
        ("h2", 3, 0, 2, 2, 3),
        ("h2", 4, 1, 2, 1, 2),
    ]
    assert {slot.size for slot in slots} == {5}


def test_news_waits_for_a_rank_that_asks_late() -> None:
    updates = HostUpdates()
    updates.mailbox("h0", 0).notify_hosts_updated(1234, 2)
    answer = updates.read("h0", 0, 0)
    assert answer == {"seen": 1, "timestamp": 1, "result": 2, "alive": []}
    assert updates.read("h0", 0, 1) == {"seen": 1, "timestamp": 0, "result": 0, "alive": []}


def test_a_new_group_makes_older_news_no_news() -> None:
    updates = HostUpdates()
    updates.mailbox("h0", 0).notify_hosts_updated(1234, 2)
    updates.discard()
    assert updates.read("h0", 0, 0)["timestamp"] == 0
    updates.mailbox("h0", 0).notify_hosts_updated(1240, 1)
    assert updates.read("h0", 0, 0) == {"seen": 2, "timestamp": 2, "result": 1, "alive": []}


def test_news_reaches_a_rank_that_is_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates_module, "WAIT_SECONDS", 60.0)  # beyond the join, so that only the update ends the wait
    updates = HostUpdates()
    answers: list[dict[str, Any]] = []
    reading = threading.Thread(target=lambda: answers.append(updates.read("h0", 0, 0)), daemon=True)
    reading.start()
    until(lambda: updates.training_ranks() == {("h0", 0)})
    updates.mailbox("h0", 0).notify_hosts_updated(7, 1)
    reading.join(30)
    assert [answer["result"] for answer in answers] == [1]


# Another driver takes over

RUNS = [{"run": 1, "slot": 0, "code": None}, {"run": 2, "slot": 1, "code": 134}]


def test_a_later_driver_takes_over_the_ranks_that_a_host_has() -> None:
    hosts = Hosts(first=1000)
    answer = hosts.poll(hello("h1", seen=7, slots=2) | {"driver": "the one before", "runs": RUNS})
    assert answer["commands"] == []
    hosts.poll(hello("h2") | {"runs": []})
    assert hosts.slots_to_take_over() == {"h1": 2}
    first, second = hosts.take_over("h1", 0), hosts.take_over("h1", 1)
    assert first and second and hosts.take_over("h1", 0) is None and hosts.take_over("h9", 0) is None
    assert (first.ended.is_set(), second.ended.is_set(), second.code) == (False, True, 134)
    hosts.record_exit({"run": 1, "code": 0})
    assert first.ended.is_set()
    assert hosts.start("h2", 0, 2, {}).number > 1000
    command = hosts.poll(hello("h2", seen=7) | {"driver": "the one before"})["commands"][0]  # 7 were another's
    assert command["do"] == "start"


def test_a_driver_takes_over_no_run_of_its_own() -> None:
    """A host that it gave up for lost and that comes back: its ranks are in no group any more."""
    hosts = Hosts(first=1000)
    hosts.poll(hello("h1") | {"runs": [{"run": 1001, "slot": 0, "code": None}]})
    assert hosts.slots_to_take_over() == {}


@pytest.mark.parametrize("runs", ["runs", [1], [{"run": "1", "slot": 0}], [{"run": 1, "slot": -1}], [{}] * 2000])
def test_runs_that_are_none_are_refused(runs: Any) -> None:
    with pytest.raises(RefusedError):
        Hosts().poll(hello("h1") | {"runs": runs})


def test_news_of_a_later_driver_is_above_all_that_a_rank_has_seen() -> None:
    later = HostUpdates(1000)
    assert later.read("h1", 0, 17)["seen"] == 17
    later.mailbox("h1", 0).notify_hosts_updated(5, 3)
    assert later.read("h1", 0, 17) == {"seen": 1001, "timestamp": 1001, "result": 3, "alive": []}


def test_while_a_group_is_taken_over_only_its_hosts_form_it() -> None:
    wanted = (Host("h1", 1), Host("h2", 1))
    discovery = Discovery(lambda: wanted, lambda: {"h1": 1, "h2": 1})
    discovery.only = frozenset({"h2"})
    assert discovery.find_available_hosts_and_slots() == {"h2": 1}
    discovery.only = None
    assert discovery.find_available_hosts_and_slots() == {"h1": 1, "h2": 1}


def test_ranks_receive_the_remaining_addresses_after_the_loss_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.0)
    clock = Clock()
    hosts = Hosts(clock)
    hosts.poll(hello("h1") | {"address": "10.192.0.3"})
    clock.now += SILENT_SECONDS - 1
    hosts.poll(hello("h2") | {"address": "10.192.0.4"})
    clock.now += 2
    hosts.connected_slots()
    assert (hosts.losses, hosts.addresses()) == (1, ["10.192.0.4"])
    updates = HostUpdates()
    updates.mailbox("h2", 0)
    updates.drop_connections(hosts.addresses())
    assert updates.read("h2", 0, 0) == {"seen": 1, "timestamp": 1, "result": 0, "alive": ["10.192.0.4"]}
    updates.discard()
    assert updates.read("h2", 0, 1)["alive"] == []  # the group has formed without it


GIVES_UP = """
import socket, sys, sitecustomize
alive, gone = (socket.create_connection((address, int(port))) for address, port in zip(sys.argv[1::2], sys.argv[2::2]))
sitecustomize.drop_connections(["127.0.0.1"])
print(gone.recv(1), alive.recv(1))
"""


def test_a_rank_gives_up_its_connections_to_all_but_those_that_live() -> None:
    with socket.create_server(("127.0.0.1", 0)) as alive, socket.create_server(("127.0.0.2", 0)) as gone:
        places = [str(part) for server in (alive, gone) for part in server.getsockname()]
        rank = subprocess.Popen(
            [sys.executable, "-c", GIVES_UP, *places], env={"PYTHONPATH": str(SHIM)}, stdout=subprocess.PIPE
        )
        with gone.accept()[0] as silent, alive.accept()[0] as heard:
            assert silent.recv(1) == b""
            heard.sendall(b"x")
            assert rank.communicate(timeout=30)[0] == b"b'' b'x'\n"


def test_ranks_are_late_when_others_wait_for_them() -> None:
    """A rank that waits has left the group: no rank can continue in it, and those that still wait there wait for nothing."""
    group = {("h2", 0), ("h3", 0), ("h3", 1)}
    waiting = {("h2", 0): 100.0}
    assert late_ranks(waiting, group, 100.0 + LATE_SECONDS - 0.1, 0.0) == set()
    assert late_ranks(waiting, group, 100.0 + LATE_SECONDS, 0.0) == {("h3", 0), ("h3", 1)}
    assert late_ranks(waiting, group, 101.0 + LATE_SECONDS, 100.0 + LATE_SECONDS) == set()
    assert late_ranks({}, group, 200.0, 0.0) == set()


def test_a_rank_that_was_there_and_does_not_come_back_hangs() -> None:
    group, started = {("h2", 0), ("h3", 0), ("h3", 1)}, {("h2", 0), ("h3", 0)}
    waiting = {("h2", 0): 100.0}
    assert stuck_ranks(waiting, group, started, 189.0, 90) == set()
    assert stuck_ranks(waiting, group, started, 190.0, 90) == {("h3", 0)}
    assert stuck_ranks({}, group, started, 500.0, 90) == set()


@pytest.mark.parametrize(("value", "seconds"), [(None, 300), ("50", 25), ("0", math.inf), ("soon", 300)])
def test_a_job_sets_how_long_its_ranks_wait_for_each_other(value: str | None, seconds: float) -> None:
    env = {} if value is None else {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": value}
    assert regroup_timeout_seconds(env) == seconds


@pytest.mark.parametrize(("value", "seconds"), [(None, 50), ("1000", 50), ("50", 10), ("2", 1), ("0", 50)])
def test_the_stall_check_interval_follows_the_stall_limit_of_the_job(value: str | None, seconds: float) -> None:
    env = {} if value is None else {STALL_VARIABLE: value}
    assert horovod_env(env, "eth0", 1, elastic=True)["HOROVOD_STALL_CHECK_TIME_SECONDS"] == f"{seconds:.0f}"


def test_a_hanging_rank_is_named_and_on_request_removed_within_two_minutes() -> None:
    assert 2 * stall_check_seconds({}) < 120
    asked = {STALL_VARIABLE: "50"}
    in_a_step = 2 * stall_check_seconds(asked) + stall_seconds(asked) + stall_check_seconds(asked)
    assert in_a_step + regroup_timeout_seconds(asked) + KILL_SECONDS < 120


def test_a_rank_trains_from_when_it_first_asks_for_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates_module, "WAIT_SECONDS", 0)
    updates = HostUpdates()
    updates.mailbox("h2", 0)
    updates.read("h3", 0, 0)
    assert updates.training_ranks() == {("h3", 0)}
    updates.reset_rank("h3", 0)
    assert updates.training_ranks() == set()


def test_only_late_ranks_are_asked_to_drop_connections() -> None:
    updates = HostUpdates()
    for place in (("h2", 0), ("h3", 0)):
        updates.mailbox(*place)
    updates.drop_connections(["10.192.0.9"], {("h3", 0)})
    assert (updates.read("h2", 0, 0)["alive"], updates.read("h3", 0, 0)["alive"]) == ([], ["10.192.0.9"])
