"""Environments are prepared in the background, one at a time, and given up when the agent ends."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runners.agent.actions import NotReadyError
from runners.agent.environment_keeper import EnvironmentKeeper
from runners.agent.shared_environments import WantedEnvironment
from runners.environments.builds import Report
from runners.environments.preparing import Progress
from runners.messages import Quotation
from runners.runtime import CreateError


def wanted(*keys: str) -> list[WantedEnvironment]:
    return [WantedEnvironment(key) for key in keys]


class Slow:
    """Prepares until ``go`` is set; fails those in ``bad``."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.go = threading.Event()
        self.bad: set[str] = set()
        self.known: dict[str, Report] = {}
        self.dropped = threading.Event()

    def prepare(self, key: str, progress: Progress | None = None) -> Report:
        self.order.append(key)
        self.known[key] = Report(key, state="preparing", progress_percent=40, message=Quotation("compiling"))
        try:
            while not self.go.wait(0.01):
                if progress:
                    progress(40, Quotation("compiling"))
        except BaseException:
            self.dropped.set()
            raise
        state = "failed" if key in self.bad else "ready"
        self.known[key] = Report(key, "d", state, 100, Quotation("no compiler") if key in self.bad else None)  # type: ignore[arg-type]
        return self.known[key]

    def reports(self) -> list[Report]:
        return list(self.known.values())

    def reference_of(self, key: str) -> str | None:
        return key if key in self.known and self.known[key].state == "ready" else None


def until(met: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_they_are_prepared_in_order_and_reported_meanwhile() -> None:
    slow = Slow()
    keeper = EnvironmentKeeper(slow)
    keeper.start()
    keeper.set_wanted(wanted("b", "a"))
    until(lambda: slow.order == ["b"])
    states = {report["key"]: (report["state"], report["progress_percent"]) for report in keeper.reports()}
    assert states == {"b": ("preparing", 40), "a": ("waiting", 0)}
    with pytest.raises(NotReadyError, match="compiling"):
        keeper.require("b")
    slow.go.set()
    until(lambda: {report["state"] for report in keeper.reports()} == {"ready"})
    assert slow.order == ["b", "a"]
    keeper.require("a")
    keeper.stop()


def test_those_that_were_ready_come_first_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "environments.json"
    slow = Slow()
    slow.go.set()
    before = EnvironmentKeeper(slow, file)
    before.start()
    before.set_wanted(wanted("c", "b"))
    until(lambda: {report["state"] for report in before.reports()} == {"ready"})
    before.stop()
    again = Slow()
    again.go.set()
    keeper = EnvironmentKeeper(again, file)
    keeper.set_wanted(wanted("new", "a", "b", "c"))
    keeper.start()
    until(lambda: len(again.order) == 4)
    assert again.order == ["b", "c", "new", "a"]
    keeper.stop()


@pytest.mark.parametrize("content", ["", "7", '{"a": 1}', "[[1]]", '["gone"]'])
def test_a_damaged_memory_changes_nothing(tmp_path: Path, content: str) -> None:
    file = tmp_path / "environments.json"
    file.write_text(content)
    slow = Slow()
    slow.go.set()
    keeper = EnvironmentKeeper(slow, file)
    keeper.set_wanted(wanted("b", "a"))
    keeper.start()
    until(lambda: len(slow.order) == 2)
    assert slow.order == ["b", "a"]
    keeper.stop()


def test_what_failed_is_reported_and_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.agent.environment_keeper.FIRST_RETRY_SECONDS", 0.1)
    slow = Slow()
    slow.bad = {"a"}
    slow.go.set()
    keeper = EnvironmentKeeper(slow)
    keeper.start()
    keeper.set_wanted(wanted("a"))
    until(lambda: slow.order)
    until(lambda: slow.known["a"].state == "failed")
    with pytest.raises(CreateError, match="no compiler"):
        keeper.require("a")
    slow.bad.clear()
    until(lambda: slow.known["a"].state == "ready")
    keeper.stop()


def test_what_is_wanted_while_it_looks_is_not_missed() -> None:
    class Wanting(Slow):
        """While the first is determined, a second one is requested."""

        def reference_of(self, key: str) -> str | None:
            if key == "a" and not self.order:
                keeper.set_wanted(wanted("a", "b"))
            return "a" if key == "a" else super().reference_of(key)

    slow = Wanting()
    slow.go.set()
    keeper = EnvironmentKeeper(slow)
    keeper.set_wanted(wanted("a"))
    keeper.start()
    until(lambda: slow.order == ["b"])
    keeper.stop()


def test_a_mistake_of_ours_is_not_repeated_in_a_hot_loop_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runners.agent.environment_keeper.FIRST_RETRY_SECONDS", 0.5)

    class Broken(Slow):
        def prepare(self, key: str, progress: Progress | None = None) -> Report:
            if key == "broken":
                self.order.append(key)
                raise RuntimeError("unexpected")
            return super().prepare(key, progress)

    slow = Broken()
    slow.go.set()
    keeper = EnvironmentKeeper(slow)
    keeper.set_wanted(wanted("broken", "good"))
    keeper.start()
    until(lambda: "good" in slow.order)
    assert slow.order[:2] == ["broken", "good"]
    until(lambda: slow.order.count("broken") == 2)
    keeper.stop()


def test_a_container_that_needs_one_that_was_not_requested_gets_it_prepared() -> None:
    slow = Slow()
    slow.go.set()
    keeper = EnvironmentKeeper(slow)
    keeper.start()
    with pytest.raises(NotReadyError):
        keeper.require("x")
    until(lambda: slow.order == ["x"])
    keeper.stop()


def test_its_end_drops_what_is_being_prepared() -> None:
    slow = Slow()
    keeper = EnvironmentKeeper(slow)
    keeper.start()
    keeper.set_wanted(wanted("a"))
    until(lambda: slow.order)
    keeper.stop()
    assert slow.dropped.is_set(), "a compiler would run on"
