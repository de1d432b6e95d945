"""How many environments a node prepares at a time, and what waits for none of them."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from runners.agent import environment_keeper
from runners.agent.actions import NotReadyError
from runners.agent.environment_keeper import MAX_BUILDS, MAX_BUILDS_OF_LAB, EnvironmentKeeper
from runners.agent.shared_environments import SharedEnvironments, WantedEnvironment
from runners.environments.builds import Report
from runners.environments.preparing import Progress
from runners.messages import Quotation
from runners.messages.environments import BehindOthers

TICK_SECONDS = 0.01


class Bases:
    """Environments of the release. Each takes until ``go`` is set, or is ready before."""

    def __init__(self, *ready: str) -> None:
        self.ready = set(ready)
        self.go = threading.Event()
        self.prepared: list[str] = []

    def prepare(self, key: str, progress: Progress | None = None) -> Report:
        self.prepared.append(key)
        while not self.go.wait(TICK_SECONDS):
            if progress:
                progress(1, Quotation("downloading"))
        self.ready.add(key)
        return Report(key, "d", "ready", 100)

    def reports(self) -> list[Report]:
        return [Report(key, "d", "ready", 100) for key in sorted(self.ready)]

    def reference_of(self, key: str) -> str | None:
        return key if key in self.ready else None


class Shared(SharedEnvironments):
    """Layers whose builds take until their key is in ``done``; ``here`` are the digests that need not be fetched."""

    def __init__(self, bases: Bases) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # no portal is asked
        self.bases = bases
        self.begun: list[str] = []
        self.building: set[str] = set()
        self.done: set[str] = set()
        self.here: set[str] = set()
        self.fetched: Counter[str] = Counter()
        self.dropped: set[str] = set()

    def has(self, digest: str) -> bool:
        return digest in self.here

    def _is_here(self, digest: str) -> bool:
        return digest in self.here

    def fetch(self, digest: str, progress: Progress) -> None:
        with self._fetching_of(digest, progress):
            if digest not in self.here:
                self.fetched[digest] += 1
                time.sleep(TICK_SECONDS)
                self.here.add(digest)

    def tidy(self, needed: Collection[str]) -> None:
        pass

    def _prepare(self, wanted: WantedEnvironment, progress: Progress) -> Report:
        if self.bases.reference_of(wanted.base) is None:
            self.bases.prepare(wanted.base, progress)
        self.begun.append(wanted.key)
        self.building.add(wanted.key)
        try:
            while wanted.key not in self.done:
                time.sleep(TICK_SECONDS)
                progress(10, Quotation("compiling"))
        except BaseException:
            self.dropped.add(wanted.key)
            raise
        finally:
            self.building.discard(wanted.key)
        self.here.add(f"digest of {wanted.key}")
        return self._ready(wanted, f"digest of {wanted.key}")


class Node:
    def __init__(self, *ready: str) -> None:
        self.bases = Bases(*ready)
        self.layers = Shared(self.bases)
        self.keeper = EnvironmentKeeper(self.bases, None, self.layers)  # type: ignore[arg-type]
        self.keeper.start()

    def want(self, *wanted: WantedEnvironment) -> None:
        self.keeper.set_wanted(wanted)

    def report(self, key: str) -> dict[str, Any]:
        return next(each for each in self.keeper.reports() if each["key"] == key)


def layer(key: str, project: int = 0, recipe: str = "", base: str = "numpy") -> WantedEnvironment:
    return WantedEnvironment(key, base, recipe or f"recipe of {key}", 1, project=project)


def until(met: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not met():
        assert time.monotonic() < end
        time.sleep(TICK_SECONDS)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node("numpy")
    yield made
    made.keeper.stop()


def test_a_build_that_never_ends_holds_up_only_those_of_its_project(node: Node) -> None:
    node.layers.done = {"small", "smaller"}
    node.want(layer("endless", 7), layer("next", 7), layer("small", 8), layer("smaller", 8))
    until(lambda: node.report("smaller")["state"] == "ready")
    assert node.layers.begun == ["endless", "small", "smaller"]
    assert node.report("next")["message"] == BehindOthers().data()
    node.layers.done.add("endless")
    until(lambda: "next" in node.layers.building)


def test_one_that_waits_for_nothing_reports_nothing_else(node: Node) -> None:
    node.keeper.stop()
    node.want(layer("first", 7))
    assert node.report("first")["message"] is None


def test_environments_of_the_lab_are_bounded_as_those_of_a_portal_of_before(node: Node) -> None:
    node.want(*(layer(f"lab-{number}") for number in range(4)))
    until(lambda: len(node.layers.building) == MAX_BUILDS_OF_LAB)
    node.layers.done.add("lab-1")
    until(lambda: "lab-2" in node.layers.building)
    assert node.layers.building == {"lab-0", "lab-2"}


def test_all_projects_together_are_bounded(node: Node) -> None:
    node.want(*(layer(f"of-{project}", project) for project in range(1, MAX_BUILDS + 3)))
    until(lambda: len(node.layers.building) == MAX_BUILDS)
    node.layers.done.add("of-2")
    until(lambda: f"of-{MAX_BUILDS + 1}" in node.layers.building)
    assert len(node.layers.building) == MAX_BUILDS


def test_two_environments_with_the_same_packages_are_not_built_at_once(node: Node) -> None:
    """The portal would give the running build to this node a second time."""
    node.want(layer("one", 1, "same"), layer("two", 2, "same"), layer("three", 3))
    until(lambda: node.layers.building == {"one", "three"})
    node.layers.done = {"one"}
    until(lambda: node.layers.building == {"two", "three"})


def test_an_environment_of_the_release_is_prepared_once() -> None:
    node = Node("numpy")
    wanted = [WantedEnvironment("pytorch"), WantedEnvironment("tensorflow")]
    node.want(*wanted, layer("a", 1, base="pytorch"), layer("b", 2, base="pytorch"), layer("c", 3))
    until(lambda: node.layers.building == {"c"})
    assert node.bases.prepared == ["pytorch"]
    node.bases.go.set()
    until(lambda: node.layers.building == {"a", "b", "c"})
    until(lambda: len(node.bases.ready) == 3)
    assert sorted(node.bases.prepared) == ["pytorch", "tensorflow"]
    node.keeper.stop()


def test_a_container_waits_for_no_build(node: Node) -> None:
    node.want(*(layer(f"of-{project}", project) for project in range(1, MAX_BUILDS + 1)))
    until(lambda: len(node.layers.building) == MAX_BUILDS)
    with pytest.raises(NotReadyError):
        node.keeper.require("numpy", "needed")
    until(lambda: node.layers.has("needed"))
    node.keeper.require("numpy", "needed")


def test_two_threads_fetch_a_layer_once(node: Node) -> None:
    threads = [threading.Thread(target=node.layers.fetch, args=("wide", lambda percent, step: None)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert node.layers.fetched == {"wide": 1}


def test_all_that_runs_ends_with_the_agent(node: Node) -> None:
    node.want(layer("a", 1), layer("b", 2), WantedEnvironment("pytorch"))
    until(lambda: node.layers.building == {"a", "b"} and node.bases.prepared)
    began = time.monotonic()
    node.keeper.stop()
    assert node.layers.dropped == {"a", "b"} and not node.keeper._running
    assert time.monotonic() - began < 10


def test_an_unexpected_error_frees_its_place(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_keeper, "FIRST_RETRY_SECONDS", 600.0)

    def fail(wanted: WantedEnvironment, progress: Progress) -> Report:
        node.layers.begun.append(wanted.key)
        raise ZeroDivisionError

    monkeypatch.setattr(node.layers, "_prepare", fail)
    node.want(layer("a", 1), layer("b", 1), layer("c", 1))
    until(lambda: node.layers.begun == ["a", "b", "c"])
    until(lambda: not node.keeper._running)
