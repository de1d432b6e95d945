"""Ranks of hosts that come to a group that trains: started at once, taken in when they ask, and not waited for before."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from runners.launch.hosts import Hosts
from runners.launch.joining_ranks import ASKS_FOR_PLACE, JoiningRanks
from runners.launch.ranks import SHIM
from runners.launch.rendezvous import RefusedError
from runners.launch.slots import Slot

RING = {"h1": 1}
BOTH = {"h1": 1, "h2": 1}
PLAN = [Slot("h1", 0, 2, 0, 1, 0, 2), Slot("h2", 1, 2, 0, 1, 1, 2)]


class World:
    def __init__(self, *names: str, slots: int = 1) -> None:
        self.hosts = Hosts()
        for name in names:
            self.hosts.poll({"host": name, "slots": slots, "boot": "b", "seen": 0, "runs": []})
        self.new = JoiningRanks(self.hosts)
        self.answers: list[Any] = []

    def commands(self, host: str) -> list[dict[str, Any]]:
        commands: list[dict[str, Any]] = self.hosts.poll({"host": host, "slots": 1, "boot": "b", "seen": 0})["commands"]
        return commands

    def ask(self, host: str, slot: int = 0) -> threading.Thread:
        """In a thread: the answer comes with the group."""

        def call() -> None:
            try:
                self.answers.append(self.new.first_place(host, slot))
            except RefusedError as refused:
                self.answers.append(refused.status)

        thread = threading.Thread(target=call)
        thread.start()
        return thread

    def wait_until_asked(self, ready: dict[str, int], available: dict[str, int]) -> None:
        for _ in range(500):
            if self.new.usable_slots(available, RING, 1) == ready:
                return
            threading.Event().wait(0.01)
        raise AssertionError(f"never {ready}")


@pytest.fixture(autouse=True)
def short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.launch.hosts.POLL_SECONDS", 0.02)


def test_all_hosts_are_there_at_once_while_there_is_no_group() -> None:
    world = World("h1", "h2")
    assert world.new.usable_slots(BOTH, {}, 1) == BOTH
    assert world.commands("h2") == []


def test_a_new_host_is_started_once_and_offered_when_it_has_asked() -> None:
    world = World("h1", "h2")
    world.new.usable_slots(RING, {}, 1)
    for _ in range(3):
        assert world.new.usable_slots(BOTH, RING, 1) == RING
    (start,) = world.commands("h2")
    assert (start["do"], start["label"]) == ("start", "rank 1")
    assert (start["env"][ASKS_FOR_PLACE], start["env"]["HOROVOD_LOCAL_RANK"]) == ("1", "0")
    asking = world.ask("h2")
    world.wait_until_asked(BOTH, BOTH)
    assert world.answers == []
    world.new.record_group(PLAN)
    asking.join(60)
    assert world.answers[0]["HOROVOD_RANK"] == "1"
    assert world.answers[0]["HOROVOD_SIZE"] == "2"


def test_a_host_is_offered_when_all_its_ranks_have_asked() -> None:
    world, both = World("h1", "h2", slots=2), {"h1": 1, "h2": 2}
    world.new.usable_slots(RING, {}, 1)
    world.new.usable_slots(both, RING, 1)
    threads = [world.ask("h2", 0)]
    assert world.new.usable_slots(both, RING, 1) == RING
    threads.append(world.ask("h2", 1))
    world.wait_until_asked(both, both)
    world.new.record_group([Slot("h2", slot, 2, slot, 2, 0, 1) for slot in range(2)])
    for thread in threads:
        thread.join(60)
    assert sorted(answer["HOROVOD_RANK"] for answer in world.answers) == ["0", "1"]


def test_the_rank_that_was_started_is_taken_once() -> None:
    world = World("h1", "h2")
    world.new.usable_slots(RING, {}, 1)
    world.new.usable_slots(BOTH, RING, 1)
    run = world.new.take("h2", 0)
    assert run is not None and run.number == world.commands("h2")[0]["run"]
    assert world.new.take("h2", 0) is None
    assert world.new.take("h1", 0) is None


def test_a_host_whose_rank_ends_before_it_asks_never_comes_to_the_group() -> None:
    world = World("h1", "h2")
    world.new.usable_slots(RING, {}, 1)
    world.new.usable_slots(BOTH, RING, 1)
    world.hosts.record_exit({"run": world.commands("h2")[0]["run"], "code": 1})
    assert world.new.usable_slots(BOTH, RING, 1) == RING
    assert (world.new.has_failed("h2"), world.new.has_failed("h1")) == (True, False)


def test_a_group_that_has_lost_too_much_does_not_wait_for_newcomers_to_ask() -> None:
    world = World("h2", "h3")
    world.new.usable_slots({"h1": 1}, {}, 1)
    assert world.new.usable_slots({"h2": 1}, RING, 1) == {"h2": 1}
    assert world.new.take("h2", 0) is not None


def test_who_is_asked_back_before_the_group_has_it_is_stopped() -> None:
    world = World("h1", "h2")
    world.new.usable_slots(RING, {}, 1)
    world.new.usable_slots(BOTH, RING, 1)
    world.new.cancel_join("h2")
    assert [command["do"] for command in world.commands("h2")] == ["start", "stop"]


def test_who_is_in_the_group_leaves_it_by_itself() -> None:
    world = World("h1", "h2")
    world.new.usable_slots(RING, {}, 1)
    world.new.usable_slots(BOTH, RING, 1)
    asking = world.ask("h2")
    world.wait_until_asked(BOTH, BOTH)
    world.new.record_group(PLAN)
    asking.join(60)
    world.new.cancel_join("h2")
    assert [command["do"] for command in world.commands("h2")] == ["start"]


def test_a_rank_that_an_earlier_driver_started_for_a_group_that_is_gone_is_stopped() -> None:
    world = World()
    world.hosts = Hosts(first=1_000_000)
    world.new = JoiningRanks(world.hosts)
    runs = [{"run": 7, "slot": 0, "code": None}]
    world.hosts.poll({"host": "h2", "slots": 1, "boot": "b", "seen": 0, "runs": runs})
    world.ask("h2").join(60)
    assert world.answers == [404]
    assert [(command["do"], command["run"]) for command in world.commands("h2")] == [("stop", 7)]


def test_a_rank_that_ends_while_it_waits_is_answered() -> None:
    world = World("h1", "h2")
    world.new.usable_slots(RING, {}, 1)
    world.new.usable_slots(BOTH, RING, 1)
    asking = world.ask("h2")
    world.hosts.record_exit({"run": world.commands("h2")[0]["run"], "code": 143})
    asking.join(60)
    assert world.answers == [404]


# The rank's side

BASICS = """
import os
class HorovodBasics:
    def init(self, *args):
        print(os.environ["HOROVOD_RANK"], *args)
"""
BEGINS = """
from horovod.common.basics import HorovodBasics
for comm in ("first", "again"):
    HorovodBasics().init(comm)
"""


@pytest.mark.parametrize(("newcomer", "asked"), [("1", 2), ("", 0)], ids=["new", "from the start"])
def test_a_rank_asks_for_its_place_when_it_first_begins(tmp_path: Path, newcomer: str, asked: int) -> None:
    """The first answer does not come: its driver is being replaced."""
    (tmp_path / "horovod/common").mkdir(parents=True)
    (tmp_path / "horovod/common/basics.py").write_text(BASICS)
    requests = []

    class Forwarder(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            body = b'{"HOROVOD_RANK": "3"}'
            self.send_response(502 if len(requests) == 1 else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Forwarder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {
            "PYTHONPATH": f"{SHIM}:{tmp_path}",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_port),
            "HOROVOD_HOSTNAME": "h2",
            "HOROVOD_LOCAL_RANK": "0",
            "HOROVOD_RANK": "1",
            ASKS_FOR_PLACE: newcomer,
        }
        run = subprocess.run([sys.executable, "-c", BEGINS], env=env, capture_output=True, text=True, timeout=30)
        server.shutdown()
    rank = "3" if newcomer else "1"
    assert (run.stdout, requests) == (f"{rank} first\n{rank} again\n", ["/first_place/h2:0"] * asked), run.stderr
