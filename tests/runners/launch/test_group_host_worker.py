"""How long a host of a group leaves its ranks between SIGTERM and SIGKILL, on a clock of the test."""

import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runners.launch import group_host_worker
from runners.launch.files import ContainerPaths, Control
from runners.launch.group_host_worker import KILL_SECONDS, GroupHostWorker
from runners.launch.host_worker import Verdict, WorkerContext
from runners.launch.log_writer import LogWriter
from runners.launch.processes import Wakeup
from runners.messages import Message, Quotation
from runners.messages.launch import Cancelled
from runners.spec import CollectiveGroup
from tests.runners.conftest import make_spec

GRACE_SECONDS = 60


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Ranks:
    """In place of Processes: one rank in slot 0 that ignores every signal."""

    def __init__(self) -> None:
        self.signals: list[signal.Signals] = []

    def running(self) -> set[str]:
        return {"0"}

    def signal(self, number: signal.Signals, key: str | None = None) -> None:
        assert key == "0"
        self.signals.append(number)


class Host:
    def __init__(self, home: Path, clock: Clock) -> None:
        self.clock, self.ranks, self.logs = clock, Ranks(), LogWriter(home)
        group = CollectiveGroup("127.0.0.1", 1, "secret", 1, 1)
        spec = make_spec(launcher="horovod", collective=group, grace_seconds=GRACE_SECONDS)
        paths = ContainerPaths.from_env({"SCHEDULEARN_SCRIBE": str(home), "SCHEDULEARN_CONTROL": str(home)})
        processes: Any = self.ranks
        self.work = GroupHostWorker(
            WorkerContext(spec, paths, Control(home), self.logs, processes, {}), group, Wakeup()
        )
        self.work._runs["0"] = 7

    def receives(self, **command: Any) -> None:
        self.work.client.commands.put(command)
        self.work.tick()

    def signals_after(self, seconds: float) -> list[signal.Signals]:
        self.clock.now += seconds
        self.work.tick()
        return self.ranks.signals


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    clock = Clock()
    monkeypatch.setenv("RES_OPTIONS", "")  # the work sets it for its own process
    monkeypatch.setattr(group_host_worker, "time", SimpleNamespace(monotonic=clock.monotonic))
    one = Host(tmp_path, clock)
    yield one
    one.logs.close()


def test_ranks_have_all_of_the_grace_when_the_group_ends(host: Host) -> None:
    host.receives(do="end", code=1, sentence="The job was cancelled")
    assert host.signals_after(0) == [signal.SIGTERM]
    assert host.signals_after(GRACE_SECONDS - 0.1) == [signal.SIGTERM]
    assert host.signals_after(0.2) == [signal.SIGTERM, signal.SIGKILL]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"sentence": Cancelled().text, "message": Cancelled().data()}, Cancelled()),
        ({"sentence": "It was too cold."}, Quotation("It was too cold.")),
        (
            {"sentence": "It was too cold.", "message": {"code": "launch.cold", "degrees": 3}},
            Quotation("It was too cold."),
        ),
        ({"sentence": 7, "message": [7]}, None),
        ({"sentence": ""}, None),
    ],
    ids=["this release", "the previous release", "a later release", "junk", "nothing"],
)
def test_a_driver_may_be_of_another_release(host: Host, words: dict[str, Any], message: Message | None) -> None:
    host.receives(do="end", code=1, **words)
    assert host.work._over == Verdict(1, "exited", message)


def test_a_rank_that_the_driver_ends_has_a_few_seconds(host: Host) -> None:
    host.receives(do="stop", run=7)
    host.receives(do="stop", run=7)
    assert host.signals_after(KILL_SECONDS - 0.1) == [signal.SIGTERM], "a repeated command changes nothing"
    assert host.signals_after(0.2) == [signal.SIGTERM, signal.SIGKILL]


def test_the_driver_does_not_end_a_rank_of_another_run(host: Host) -> None:
    host.receives(do="stop", run=6)
    assert host.signals_after(KILL_SECONDS + 1) == []
