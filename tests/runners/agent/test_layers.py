"""Layers of environments on a node: fetched from the portal, or built for all nodes of its kind."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from runners.agent import environment_keeper, layers, shared_environments
from runners.agent.actions import NotReadyError
from runners.agent.environment_keeper import EnvironmentKeeper
from runners.agent.layers import Layers
from runners.agent.portal_client import PortalRefusedError, PortalUnavailableError
from runners.agent.shared_environments import AgentStoppedError, BuildCancelledError, WantedEnvironment
from runners.environments.builds import BaseEnvironments, PreparedEnvironment
from runners.environments.images import Entry
from runners.environments.layers import store
from runners.environments.layers.base import Base
from runners.environments.layers.build import BuiltLayer
from runners.environments.layers.recipe import Recipe
from runners.environments.layers.sandbox import PlainSandbox
from runners.environments.preparing import PrepareError, Progress
from runners.environments.targets import Target
from runners.messages import Message, Quotation
from runners.messages.builds import BuildCancelled, BuiltElsewhere
from runners.messages.environment_failures import NoFramework

TARGET = Target("3.11", (2, 36), "x86_64")
RECIPE = Recipe("pytorch", ("pandas",))
WANTED = WantedEnvironment("mine", "pytorch", "r1", 1)


class Bases(BaseEnvironments):
    """Environments of the release that are ready at once, or never."""

    fails = False

    def _make(self, entry: Entry, progress: Progress) -> PreparedEnvironment:
        if self.fails:
            raise PrepareError(NoFramework())
        return PreparedEnvironment("d", "/python", target=TARGET, packages=("torch==2.13.0",))

    def _base(self, reference: str, target: Target, packages: tuple[str, ...]) -> Base:
        return Base(reference, target, packages, PlainSandbox(reference))

    def _exists(self, prepared: PreparedEnvironment) -> bool:
        return True


def make_layer(tmp_path: Path, content: str = "x = 1\n", kind: str = "kind") -> BuiltLayer:
    """Put a layer with one module into the store of this machine."""
    site = tmp_path / f"site-{time.monotonic_ns()}"
    site.mkdir()
    (site / "module.py").write_text(content)
    lock = f"pandas==3.1.1 \\\n    --hash=sha256:{content.encode().hex():0<64}\n"[:2000]
    digest = store.digest_of(kind, lock, RECIPE)
    return store.place(site, BuiltLayer(digest, lock, site, 7, ("module",), 1, kind, RECIPE))


@dataclass
class Portal:
    """A portal that answers claims in order, and keeps what it is sent."""

    claims: list[dict[str, Any]]
    archives: dict[str, Path] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    ended: list[dict[str, Any]] = field(default_factory=list)
    log: str = ""
    archive: bytes = b""
    failures: int = 0
    """How many pieces of an archive are lost on the way."""
    cancelled: bool = False

    def claim_environment(self, key: str, kind: str, has: str = "") -> dict[str, Any]:
        self.asked.append((key, kind))
        return self.claims.pop(0) if len(self.claims) > 1 else self.claims[0]

    def report_build(self, build: int, report: dict[str, Any]) -> int:
        if self.cancelled or self.ended:
            raise PortalRefusedError(409, "It has ended.", "ended")
        if report["offset"] == len(self.log.encode()):
            self.log += report["log"]
        return len(self.log.encode())

    def put_archive_piece(self, build: int, offset: int, content: bytes) -> int:
        if self.failures:
            self.failures -= 1
            raise PortalUnavailableError("no answer")
        if offset == len(self.archive):
            self.archive += content
        return len(self.archive)

    def end_build(self, build: int, result: dict[str, Any]) -> None:
        if self.cancelled:
            raise PortalRefusedError(409, "It has ended.", "ended")
        self.ended.append(result)

    def image_source(self, digest: str, failure: Message | None = None) -> dict[str, Any]:
        raise AssertionError

    def fetch_layer(self, digest: str, into: BinaryIO, progress: Callable[[int, int], None]) -> str:
        content = self.archives[digest].read_bytes()
        into.write(content)
        progress(len(content), len(content))
        return self.sha256[digest]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shared_environments, "TRY_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(shared_environments, "REPORT_SECONDS", 0.02)


def ignore(percent: int, step: object) -> None:
    """Report nothing."""


def ready(layer: BuiltLayer, **more: Any) -> dict[str, Any]:
    return {"state": "ready", "digest": layer.digest, "bytes": 1, **more}


def offered(tmp_path: Path, layer: BuiltLayer) -> Portal:
    """Return a portal that has a layer, which this machine has not."""
    packed = store.pack(layer.digest, tmp_path / "packed.tar")
    store.tidy((), 0)
    assert store.path_of(layer.digest) is None
    return Portal([ready(layer)], {layer.digest: packed.path}, {layer.digest: packed.sha256})


def built_by(monkeypatch: pytest.MonkeyPatch, build: Callable[..., BuiltLayer]) -> None:
    monkeypatch.setattr(layers.build, "build_layer", build)


def test_a_layer_that_another_node_built_is_fetched(tmp_path: Path) -> None:
    layer = make_layer(tmp_path)
    portal = offered(tmp_path, layer)
    node = Layers(Bases(), portal)
    steps: list[int] = []
    report = node.prepare(WANTED, lambda percent, step: steps.append(percent))
    assert (report.state, report.digest) == ("ready", layer.digest)
    assert node.has_current(WANTED) and node.has(layer.digest)
    assert steps == sorted(steps)
    (key, kind) = portal.asked[0]
    assert key == "mine" and kind.startswith("cp311-linux_x86_64-glibc2.36-cpu-")
    assert (store.path_of(layer.digest) or tmp_path).joinpath("module.py").read_text() == "x = 1\n"


def test_one_that_is_here_already_is_not_fetched(tmp_path: Path) -> None:
    layer = make_layer(tmp_path)
    assert Layers(Bases(), Portal([ready(layer)])).prepare(WANTED, ignore).state == "ready"


def test_a_damaged_archive_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    layer = make_layer(tmp_path)
    portal = offered(tmp_path, layer)
    portal.sha256[layer.digest] = "0" * 64
    report = Layers(Bases(), portal).prepare(WANTED, ignore)
    assert report.state == "failed" and "hash" in report.detail
    assert store.path_of(layer.digest) is None


def test_no_container_is_shown_a_download_that_broke_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make_layer(tmp_path)
    portal = offered(tmp_path, layer)
    node = Layers(Bases(), portal)

    def fetch(digest: str, into: BinaryIO, progress: Callable[[int, int], None]) -> str:
        progress(1, 2)
        assert node.step_of(digest) is not None
        raise PortalUnavailableError("no answer")

    monkeypatch.setattr(portal, "fetch_layer", fetch)
    with pytest.raises(PortalUnavailableError):
        node.fetch(layer.digest, ignore)
    assert node.step_of(layer.digest) is None


def test_a_build_is_logged_sent_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_environments, "PIECE_BYTES", 700)

    def build(recipe: Recipe, base: Base, log: Path, progress: Progress, *, fresh: bool) -> BuiltLayer:
        assert (recipe, base.packages, fresh) == (RECIPE, ("torch==2.13.0",), False)
        log.write_bytes(b"resolving\nnot text: \xff\n")
        progress(40, Quotation("installing"))
        return make_layer(tmp_path)

    built_by(monkeypatch, build)
    portal = Portal([{"state": "build", "build": 7, "recipe": RECIPE.to_json(), "fresh": False}], failures=2)
    node = Layers(Bases(), portal)
    report = node.prepare(WANTED, ignore)
    assert report.state == "ready"
    assert portal.log == "resolving\nnot text: \ufffd\n"
    (end,) = portal.ended
    assert end["state"] == "done" and end["modules"] == ["module"] and end["digest"] == report.digest
    assert len(portal.archive) > 1400
    store.tidy((), 0)
    (tmp_path / "sent.tar").write_bytes(portal.archive)
    store.unpack(tmp_path / "sent.tar", report.digest, end["sha256"])


def test_the_portal_has_the_whole_log_of_a_build_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is written last, and although a build that has ended has no log any more."""
    monkeypatch.setattr(shared_environments, "REPORT_SECONDS", 60.0)
    monkeypatch.setattr(shared_environments, "LOG_PIECE_BYTES", 10)

    def build(recipe: Recipe, base: Base, log: Path, progress: Progress, *, fresh: bool) -> BuiltLayer:
        log.write_text("resolving\ninstalling\nthe cause, without an end of the line")
        raise PrepareError(NoFramework())

    built_by(monkeypatch, build)
    portal = Portal([{"state": "build", "build": 7, "recipe": RECIPE.to_json()}])
    assert Layers(Bases(), portal).prepare(WANTED, ignore).state == "failed"
    assert portal.ended and portal.log == "resolving\ninstalling\nthe cause, without an end of the line"


def test_a_failed_build_is_reported_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*args: Any, **named: Any) -> BuiltLayer:
        raise PrepareError(NoFramework())

    built_by(monkeypatch, build)
    portal = Portal([{"state": "build", "build": 7, "recipe": RECIPE.to_json()}])
    report = Layers(Bases(), portal).prepare(WANTED, ignore)
    assert report.state == "failed" and report.message == NoFramework()
    assert portal.ended == [{"state": "failed", "message": NoFramework().data(), "detail": NoFramework().text}]


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        (RECIPE.to_json() | {"lines": ["tool @ git+https://git.lab/tool"]}, "paths and repositories are not read"),
        (RECIPE.to_json() | {"base": "", "horovod": True}, "add torch to the list"),
        (RECIPE.to_json() | {"compiler": "gcc-14"}, "A recipe has no 'compiler'"),
        (None, "A recipe is an object"),
    ],
)
def test_a_recipe_that_this_agent_cannot_build_ends_its_build_with_the_reason(recipe: Any, sentence: str) -> None:
    portal = Portal([{"state": "build", "build": 7, "recipe": recipe}])
    report = Layers(Bases(), portal).prepare(WANTED, ignore)
    assert report.state == "failed" and sentence in report.detail
    (end,) = portal.ended
    assert (end["state"], end["message"]["code"]) == ("failed", "layer.bad_recipe") and sentence in end["detail"]


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (ZeroDivisionError("division by zero"), "build.unexpected_error", "ZeroDivisionError: division by zero."),
        (KeyError("wheel"), "build.unexpected_error", "KeyError: 'wheel'."),
        (PortalRefusedError(403, "The disk of the portal is full."), "build.refused", "disk of the portal is full"),
        (PermissionError(13, "Permission denied"), "environment.system_refused", "Permission denied"),
    ],
)
def test_whatever_stops_a_build_ends_it_at_the_portal(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: str, sentence: str
) -> None:
    def build(*args: Any, **named: Any) -> BuiltLayer:
        raise error

    built_by(monkeypatch, build)
    portal = Portal([{"state": "build", "build": 7, "recipe": RECIPE.to_json()}])
    with suppress(ArithmeticError, LookupError):
        Layers(Bases(), portal).prepare(WANTED, ignore)
    (end,) = portal.ended
    assert (end["state"], end["message"]["code"]) == ("failed", code) and sentence in end["detail"]


def test_a_build_whose_log_cannot_be_written_ends(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "logs").write_text("a file in the place of the folder")
    portal = Portal([{"state": "build", "build": 7, "recipe": RECIPE.to_json()}])
    assert Layers(Bases(), portal).prepare(WANTED, ignore).state == "failed"
    assert [end["message"]["code"] for end in portal.ended] == ["environment.system_refused"]


@pytest.mark.parametrize("error", [AgentStoppedError(), PortalUnavailableError("no answer")])
def test_a_build_that_this_node_begins_again_is_not_ended(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def build(*args: Any, **named: Any) -> BuiltLayer:
        raise error

    built_by(monkeypatch, build)
    portal = Portal([{"state": "build", "build": 7, "recipe": RECIPE.to_json()}])
    with pytest.raises(type(error)):
        Layers(Bases(), portal).prepare(WANTED, ignore)
    assert portal.ended == []


def test_an_archive_of_a_build_that_has_ended_cancels_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(*args: Any) -> int:
        raise PortalRefusedError(409, "It has ended.", "ended")

    built_by(monkeypatch, lambda *args, **named: make_layer(tmp_path))
    portal = Portal([{"state": "build", "build": 7, "recipe": RECIPE.to_json()}])
    monkeypatch.setattr(portal, "put_archive_piece", put)
    with pytest.raises(BuildCancelledError):
        Layers(Bases(), portal).prepare(WANTED, ignore)
    assert portal.ended == []


def test_a_cancelled_build_stops_at_its_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    portal = Portal([{"state": "build", "build": 7, "recipe": RECIPE.to_json()}])

    def build(recipe: Recipe, base: Base, log: Path, progress: Progress, *, fresh: bool) -> BuiltLayer:
        portal.cancelled = True
        end = time.monotonic() + 30
        while time.monotonic() < end:
            progress(10, Quotation("resolving"))
            time.sleep(0.01)
        raise AssertionError("not cancelled")

    built_by(monkeypatch, build)
    with pytest.raises(BuildCancelledError):
        Layers(Bases(), portal).prepare(WANTED, ignore)


def test_jobs_use_the_layer_of_before_until_a_later_one_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = make_layer(tmp_path), make_layer(tmp_path, "x = 2\n")
    portal = Portal([ready(old), ready(old, final=False), ready(new)])
    node = Layers(Bases(), portal)
    node.prepare(WANTED, ignore)
    again = WantedEnvironment("mine", "pytorch", "r1", 2)
    assert not node.has_current(again)
    assert node.prepare(again, ignore).digest == old.digest
    assert not node.has_current(again)  # another node builds it: it is asked for again
    assert node.prepare(again, ignore).digest == new.digest
    assert node.has_current(again)


def test_a_later_build_that_fails_leaves_the_layer_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = make_layer(tmp_path)
    portal = Portal([ready(old), {"state": "build", "build": 8, "recipe": RECIPE.to_json(), "fresh": True}])
    node = Layers(Bases(), portal)
    node.prepare(WANTED, ignore)
    seen: list[str] = []

    def build(recipe: Recipe, base: Base, log: Path, progress: Progress, *, fresh: bool) -> BuiltLayer:
        progress(10, Quotation("resolving"))
        seen.append(node.reports()[0].state)
        raise PrepareError(NoFramework())

    built_by(monkeypatch, build)
    report = node.prepare(WantedEnvironment("mine", "pytorch", "r1", 2), ignore)
    assert (report.state, report.message) == ("failed", NoFramework())
    (shown,) = node.reports()
    assert (shown.state, shown.digest) == ("ready", old.digest)
    assert seen == ["ready"]


def test_a_later_layer_that_could_not_be_fetched_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_keeper, "FIRST_RETRY_SECONDS", 0.05)
    new = make_layer(tmp_path, "x = 7\n")
    portal = offered(tmp_path, new)
    old = make_layer(tmp_path, "x = 6\n")
    portal.claims = [ready(old), ready(new)]
    good, portal.sha256[new.digest] = portal.sha256[new.digest], "damaged on its way"
    bases = Bases()
    node = Layers(bases, portal)
    node.prepare(WANTED, ignore)
    keeper = EnvironmentKeeper(bases, None, node)
    keeper.set_wanted([WantedEnvironment("mine", "pytorch", "r1", 2)])
    keeper.start()
    until(lambda: len(portal.asked) == 3)
    assert [each["digest"] for each in keeper.reports() if each["key"] == "mine"] == [old.digest]
    portal.sha256[new.digest] = good
    until(lambda: [each["digest"] for each in keeper.reports() if each["key"] == "mine"] == [new.digest])
    keeper.stop()


def test_a_cancelled_build_is_not_asked_for_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    portal = Portal([{"state": "build", "build": 7, "recipe": RECIPE.to_json()}], cancelled=True)

    def build(*args: Any, **named: Any) -> BuiltLayer:
        raise BuildCancelledError

    built_by(monkeypatch, build)
    bases = Bases()
    keeper = EnvironmentKeeper(bases, None, Layers(bases, portal))
    keeper.set_wanted([WANTED, WantedEnvironment("pytorch")])
    keeper.start()
    until(lambda: keeper._retry)
    keeper.stop()
    assert portal.asked[1:] == [] and WANTED in keeper._retry


def test_a_base_that_cannot_be_prepared_is_the_reason() -> None:
    bases = Bases()
    bases.fails = True
    report = Layers(bases, Portal([{}])).prepare(WANTED, ignore)
    assert report.state == "failed" and report.message == NoFramework()


def test_what_the_portal_has_given_up_is_reported() -> None:
    refused = BuildCancelled("alice")
    report = Layers(Bases(), Portal([{"state": "failed", "message": refused.data()}])).prepare(WANTED, ignore)
    assert (report.state, report.message) == ("failed", refused)


def test_layers_that_nothing_uses_are_deleted_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, needed, unused = (make_layer(tmp_path, f"x = {number}\n") for number in range(3))
    monkeypatch.setattr(layers, "UNUSED_SECONDS", -1.0)
    node = Layers(Bases(), Portal([ready(used)]))
    node.prepare(WANTED, ignore)
    node.tidy({needed.digest})
    assert [store.path_of(each.digest) is not None for each in (used, needed, unused)] == [True, True, False]


# --- the keeper -------------------------------------------------------------------------------------------------------


def until(met: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_keeper_waits_for_the_build_of_another_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_keeper, "ELSEWHERE_SECONDS", 0.05)
    layer = make_layer(tmp_path)
    elsewhere = {"state": "wait", "message": BuiltElsewhere("vm1", 40, Quotation("installing")).data()}
    portal = Portal([elsewhere, elsewhere, ready(layer)])
    go = threading.Event()
    claim = portal.claim_environment

    def claimed(key: str, kind: str) -> dict[str, Any]:
        if len(portal.asked) == 1:
            go.wait(30)
        return claim(key, kind)

    monkeypatch.setattr(portal, "claim_environment", claimed)
    bases = Bases()
    keeper = EnvironmentKeeper(bases, None, Layers(bases, portal))
    keeper.start()
    keeper.set_wanted([WantedEnvironment("pytorch"), WANTED])
    until(lambda: len(portal.asked) == 1 and any(each["key"] == "mine" for each in keeper.reports()))
    until(lambda: {each["key"]: each["progress_percent"] for each in keeper.reports()} == {"pytorch": 100, "mine": 40})
    go.set()
    until(lambda: {each["state"] for each in keeper.reports()} == {"ready"})
    keeper.stop()


def test_build_again_is_not_delayed_by_earlier_failures(tmp_path: Path) -> None:
    layer = make_layer(tmp_path)
    failed = {"state": "failed", "message": BuildCancelled("alice").data()}
    portal = Portal([failed, ready(layer)])
    bases = Bases()
    keeper = EnvironmentKeeper(bases, None, Layers(bases, portal))
    keeper.start()
    keeper.set_wanted([WANTED])
    until(lambda: [each["state"] for each in keeper.reports()][-1:] == ["failed"])
    keeper.set_wanted([WantedEnvironment("mine", "pytorch", "r1", 2)])
    until(lambda: keeper.reports()[-1]["state"] == "ready")
    keeper.stop()


def test_a_container_waits_for_a_layer_that_has_gone_missing(tmp_path: Path) -> None:
    layer = make_layer(tmp_path)
    portal = offered(tmp_path, layer)
    bases = Bases()
    bases.prepare("pytorch")
    keeper = EnvironmentKeeper(bases, None, Layers(bases, portal))
    with pytest.raises(NotReadyError):
        keeper.require("pytorch", layer.digest)
    keeper.start()
    until(lambda: store.path_of(layer.digest) is not None)
    keeper.require("pytorch", layer.digest)
    keeper.stop()


def test_the_percentage_of_a_build_never_goes_back() -> None:
    """A list may be resolved more than once, and what was built is sent after it is packed."""
    seen: list[int] = []
    build = shared_environments.ReportedBuild(1, Portal([]), lambda percent, step: seen.append(percent))
    for percent in (3, 6, 1, 97, 95):
        build.progress(percent, Quotation("step"))
    assert seen == [3, 6, 6, 97, 97]
