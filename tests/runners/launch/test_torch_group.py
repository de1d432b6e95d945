"""What the leader of an elastic torchrun group starts and ends when hosts join, leave and fail. No processes."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from runners.launch import hosts as hosts_module
from runners.launch import torch_group as module
from runners.launch.files import Host
from runners.launch.hosts import Hosts
from runners.launch.torch_group import TorchGroup, choose_hosts
from runners.messages import Message
from runners.messages.launch import LacksRanks, RankEnded
from runners.spec import CollectiveGroup
from tests.runners.launching import until


class Stage:
    """The group in a thread, and hosts that the test controls."""

    def __init__(self, least: int = 1, most: int = 4, first: int = 0) -> None:
        self.hosts = Hosts(first=first)
        self.slots: dict[str, int] = {}
        self.available: dict[str, int] = {}
        self.lookups = 0
        """How often the group has asked for the hosts that it may use."""
        self.reports: list[str] = []
        self.formed: list[list[str]] = []
        self.group = TorchGroup(
            self.hosts,
            self._available,
            CollectiveGroup("10.0.0.1", 1, "secret", least, most),
            self.reports.append,
            self.formed.append,
        )
        self.outcome: tuple[int, Message | None] | None = None
        self.dark: set[str] = set()
        self._seen: dict[str, int] = {}
        self._started: list[dict[str, Any]] = []
        self._stopped: set[int] = set()

    def connect(self, name: str, slots: int = 1, runs: list[dict[str, Any]] | None = None) -> None:
        self.slots[name] = slots
        self.poll(name, runs or [])
        self.available[name] = slots

    def _available(self) -> dict[str, int]:
        present = self.hosts.connected_slots()
        self.lookups += 1
        return {name: slots for name, slots in self.available.items() if name in present}

    def begin(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self.outcome = self.group.run()

    def poll(self, name: str, runs: list[dict[str, Any]] | None = None) -> None:
        """As the supervisor of the host does all the time."""
        if name in self.dark:
            return
        seen = self._seen.get(name, 0)
        message = {"host": name, "slots": self.slots[name], "boot": name, "seen": seen, "address": f"10.0.0.{name[1:]}"}
        for command in self.hosts.poll({**message, "runs": runs or []})["commands"]:
            self._seen[name] = command["number"]
            if command["do"] == "start":
                self._started.append({"host": name, "run": command["run"], **command["env"]})
            elif command["do"] == "stop":
                self._stopped.add(command["run"])

    def wait_for_starts(self, *hosts: str) -> list[dict[str, Any]]:
        """Wait until these hosts, and no others, have been ordered to start a rank each. Return the environments."""

        def all_started() -> bool:
            for name in list(self.available):
                self.poll(name)
            return len(self._started) >= len(hosts)

        until(all_started, 10, lambda: f"{self.reports} {self._started}")
        started, self._started = self._started, []
        assert [rank["host"] for rank in sorted(started, key=lambda rank: int(rank["RANK"]))] == list(hosts)
        return sorted(started, key=lambda rank: int(rank["RANK"]))

    def end(self, rank: dict[str, Any], code: int = 0, ending: str = "") -> None:
        self.hosts.record_exit({"run": rank["run"], "code": code, "ending": ending})

    def wait_for_stop(self, rank: dict[str, Any]) -> None:
        def stopped() -> bool:
            self.poll(rank["host"])
            return rank["run"] in self._stopped

        until(stopped, 10, lambda: str(self.reports))

    def wait_for_outcome(self) -> tuple[int, Message | None]:
        def over() -> bool:
            for name in list(self.available):
                self.poll(name)
            return self.outcome is not None

        until(over, 10, lambda: str(self.reports))
        assert self.outcome is not None
        return self.outcome


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_module, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.2)
    monkeypatch.setattr(module, "GATHER_SECONDS", 1.0)


@pytest.fixture
def stage() -> Iterator[Stage]:
    yield Stage()


def test_ranks_receive_the_environment_of_torchrun(stage: Stage) -> None:
    stage.connect("h1", 2)
    stage.connect("h2", 1)
    stage.begin()
    first, second, third = stage.wait_for_starts("h1", "h1", "h2")
    assert (first["MASTER_ADDR"], first["WORLD_SIZE"], first["TORCHELASTIC_RESTART_COUNT"]) == ("10.0.0.1", "3", "0")
    assert (second["RANK"], second["LOCAL_RANK"], second["LOCAL_WORLD_SIZE"], second["GROUP_RANK"]) == tuple("1120")
    assert (third["RANK"], third["LOCAL_RANK"], third["LOCAL_WORLD_SIZE"], third["GROUP_RANK"]) == ("2", "0", "1", "1")
    assert len({rank["MASTER_PORT"] for rank in (first, second, third)}) == 1
    assert stage.formed == [["h1", "h1", "h2"]]
    for rank in (first, second, third):
        stage.end(rank)
    assert stage.wait_for_outcome() == (0, None)


def test_a_new_host_joins_after_all_ranks_have_been_stopped(stage: Stage) -> None:
    stage.connect("h1")
    stage.begin()
    (alone,) = stage.wait_for_starts("h1")
    stage.connect("h2")
    stage.wait_for_stop(alone)
    assert stage.formed == [["h1"]]  # the others wait for its snapshot
    stage.end(alone, 143)
    both = stage.wait_for_starts("h1", "h2")
    assert [rank["WORLD_SIZE"] for rank in both] == ["2", "2"]
    assert both[0]["MASTER_PORT"] != alone["MASTER_PORT"]  # who is left of an older group cannot get into this one
    assert stage.reports == ["h2 joined the job: the ranks restart from their last snapshot"]


def test_hosts_that_stay_keep_their_order_and_the_next_one_leads_when_the_first_leaves(stage: Stage) -> None:
    for name in ("h1", "h2", "h3"):
        stage.connect(name)
    stage.begin()
    ranks = stage.wait_for_starts("h1", "h2", "h3")
    del stage.available["h1"]
    for rank in ranks:
        stage.wait_for_stop(rank)
        stage.end(rank, 0)
    left = stage.wait_for_starts("h2", "h3")
    assert left[0]["MASTER_ADDR"] == "10.0.0.2"


def test_a_rank_that_fails_ends_the_group(stage: Stage) -> None:
    stage.connect("h1")
    stage.connect("h2")
    stage.begin()
    first, second = stage.wait_for_starts("h1", "h2")
    stage.end(second, 3)
    stage.wait_for_stop(first)
    stage.end(first, 143)
    assert stage.wait_for_outcome() == (3, RankEnded(1, "h2", 3))
    assert len(stage.formed) == 1


def test_a_rank_that_fails_because_its_peer_was_lost_does_not(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hears of the loss before the driver does."""
    monkeypatch.setattr(hosts_module, "SILENT_SECONDS", 2.0)
    stage.connect("h1")
    stage.connect("h2")
    stage.begin()
    first, _ = stage.wait_for_starts("h1", "h2")
    stage.dark.add("h2")
    stage.end(first, 1)
    assert "h2" in stage.hosts.connected_slots()  # its silence is not yet noticed
    (again,) = stage.wait_for_starts("h1")
    assert again["WORLD_SIZE"] == "1"
    stage.end(again)
    assert stage.wait_for_outcome() == (0, None)
    assert stage.reports[0].startswith("h2 left the job")


def test_ranks_that_a_leaving_host_ended_have_not_finished(stage: Stage) -> None:
    stage.connect("h1")
    stage.connect("h2")
    stage.begin()
    first, second = stage.wait_for_starts("h1", "h2")
    stage.end(first, 0, "stopped")
    stage.end(second, 0)  # both agreed to stop
    (again,) = stage.wait_for_starts("h2")  # although h1 is still offered
    stage.end(again)
    assert stage.wait_for_outcome() == (0, None)


def test_what_has_begun_to_end_does_not_grow(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)
    stage.connect("h1")
    stage.connect("h2")
    stage.begin()
    first, second = stage.wait_for_starts("h1", "h2")
    stage.end(first)
    stage.connect("h3")
    before = stage.lookups

    def looked() -> bool:
        stage.poll("h3")  # which makes the group look
        return stage.lookups > before + 3

    until(looked)
    stage.end(second)
    assert stage.wait_for_outcome() == (0, None)
    assert len(stage.formed) == 1


def test_too_few_ranks_for_too_long_is_the_end() -> None:
    stage = Stage(least=2)
    stage.connect("h1")
    stage.begin()
    assert stage.wait_for_outcome() == (1, LacksRanks(2, 1))


# Another driver

TOGETHER = {"size": 2, "generation": 7}
FOUND = {
    "h1": [{"run": 7, "slot": 0, "code": None, "rank": 0, **TOGETHER}],
    "h2": [{"run": 8, "slot": 0, "code": None, "rank": 1, **TOGETHER}],
}


def test_a_whole_group_is_taken_over_undisturbed() -> None:
    stage = Stage(first=1_000_000)
    for name, runs in FOUND.items():
        stage.connect(name, runs=runs)
    stage.begin()
    until(lambda: stage.formed, 10)
    assert stage.formed == [["h1", "h2"]]
    for run in (7, 8):
        stage.end({"run": run})
    assert stage.wait_for_outcome() == (0, None)
    assert stage.reports == ["Taking over the ranks on h1, h2"] and not stage._started


@pytest.mark.parametrize("case", ["one is gone", "of two groups", "one has failed"])
def test_what_is_left_of_a_group_is_started_again(case: str) -> None:
    stage = Stage(first=1_000_000)
    runs = {name: [dict(FOUND[name][0])] for name in FOUND}
    if case == "one is gone":
        del runs["h1"]
    elif case == "of two groups":
        runs["h1"][0].update(generation=5, code=0)
    else:
        runs["h1"][0].update(code=1)
    for name, found in runs.items():
        stage.connect(name, runs=found)
    stage.begin()
    stage.wait_for_stop({"run": 8, "host": "h2"})
    stage.end({"run": 8}, 143)
    again = stage.wait_for_starts(*runs)
    assert [rank["TORCHELASTIC_RESTART_COUNT"] for rank in again] == ["1"] * len(runs)
    assert all(rank["run"] > 1_000_000 for rank in again)


# Pure


def test_hosts_are_chosen_oldest_first_up_to_the_most_ranks() -> None:
    here = {"h10": 1, "h2": 1, "h3": 2}
    assert choose_hosts(here, ["h3"], 4) == [Host("h3", 2), Host("h2", 1), Host("h10", 1)]
    assert choose_hosts(here, ["h3"], 3) == [Host("h3", 2), Host("h2", 1)]
    assert choose_hosts({"h1": 2, "h2": 1}, [], 1) == [Host("h2", 1)]
    assert choose_hosts({}, ["h1"], 4) == []
