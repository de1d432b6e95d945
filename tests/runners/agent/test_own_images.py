"""Images of projects on a node: pulled from their registry, or from the portal when that fails, or built for all."""

import hashlib
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from runners.agent import shared_environments
from runners.agent.actions import NotReadyError
from runners.agent.environment_keeper import EnvironmentKeeper, FakeEnvironments
from runners.agent.own_images import OwnImages, digest_of
from runners.agent.portal_client import PortalRefusedError
from runners.agent.shared_environments import WantedEnvironment
from runners.environments.image_check import ImageFacts
from runners.environments.own_images import OwnImageStore, PreparedImage
from runners.environments.preparing import PrepareError, Progress
from runners.environments.registry_images import RegistryAccess
from runners.messages import Message
from runners.messages.environments import AskingRegistry
from runners.messages.image_failures import DamagedImage, ImageTooLarge, NoPython, RegistryAway
from runners.messages.images import AwaitingOtherNode
from runners.spec import OWN_IMAGE

KIND = "image-linux-amd64"
NAME = "registry.example.org/lab/train:1"
EXACT = f"registry.example.org/lab/train@sha256:{'a' * 64}"
DIGEST = digest_of(KIND, EXACT)
WANTED = WantedEnvironment("mine", OWN_IMAGE, "r1", 1)
ACCESS = {"user": "lab", "token": "t0ken", "insecure": False}
AWAY = RegistryAway("registry.example.org", "no route")
MADE = PreparedImage(ImageFacts("3.12.4", "python", "glibc 2.36", ("numpy", "torch")), "c" * 64, 7 << 20)


@dataclass
class Store(OwnImageStore):
    """An engine that has what it pulled, and a registry that may be away."""

    failure: Any = None
    unfit: Any = None
    sources: set[str] = field(default_factory=set)
    prepared: set[str] = field(default_factory=set)
    pulled: list[tuple[str, RegistryAccess]] = field(default_factory=list)
    loaded: list[tuple[bytes, str]] = field(default_factory=list)

    def kind(self) -> str:
        return KIND

    def reference_of(self, digest: str) -> str | None:
        return f"job:{digest}" if digest in self.prepared else None

    def has_source(self, digest: str) -> bool:
        return digest in self.sources

    def resolve(self, image: str, access: RegistryAccess) -> str:
        if "@" in image:
            return image
        if self.failure:
            raise PrepareError(self.failure)
        return EXACT

    def pull(self, exact: str, digest: str, access: RegistryAccess, progress: Progress) -> None:
        self.pulled.append((exact, access))
        progress(50, AskingRegistry())
        if self.failure:
            raise PrepareError(self.failure)
        self.sources.add(digest)

    def load(self, archive: Path, digest: str, content: str) -> None:
        self.loaded.append((archive.read_bytes(), content))
        self.sources.add(digest)

    def save(self, digest: str) -> Iterator[bytes]:
        yield from (b"an ", b"image")

    def prepare(self, image: str, digest: str, progress: Progress) -> PreparedImage:
        if self.unfit:
            raise PrepareError(self.unfit)
        self.prepared.add(digest)
        return MADE

    def tidy(self, keep: Collection[str], unused_for_seconds: float) -> None:
        self.prepared &= set(keep)


@dataclass
class Portal:
    claims: list[dict[str, Any]]
    archive: bytes = b""
    coming: bool = True
    sha256: str = ""
    has: list[str] = field(default_factory=list)
    failures: list[Message | None] = field(default_factory=list)
    ended: list[dict[str, Any]] = field(default_factory=list)
    sent: bytes = b""
    log: str = ""

    def claim_environment(self, key: str, kind: str, has: str = "") -> dict[str, Any]:
        assert (key, kind) == ("mine", KIND)
        self.has.append(has)
        return self.claims.pop(0) if len(self.claims) > 1 else self.claims[0]

    def image_source(self, digest: str, failure: Message | None = None) -> dict[str, Any]:
        self.failures.append(failure)
        return {
            "image": EXACT,
            "content": "c" * 64,
            "access": ACCESS,
            "bytes": len(self.archive),
            "coming": self.coming and failure is not None,
        }

    def fetch_layer(self, digest: str, into: BinaryIO, progress: Callable[[int, int], None]) -> str:
        into.write(self.archive)
        progress(len(self.archive), len(self.archive))
        return self.sha256 or hashlib.sha256(self.archive).hexdigest()

    def report_build(self, build: int, report: dict[str, Any]) -> int:
        self.log += report["log"]
        return len(self.log.encode())

    def put_archive_piece(self, build: int, offset: int, content: bytes) -> int:
        assert offset == len(self.sent)
        self.sent += content
        return len(self.sent)

    def end_build(self, build: int, result: dict[str, Any]) -> None:
        self.ended.append(result)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("runners.agent.own_images.SPARE_MIB", 0)
    monkeypatch.setattr(shared_environments, "REPORT_SECONDS", 0.02)


def ignore(percent: int, step: Message) -> None:
    """Report nothing."""


READY = {"state": "ready", "digest": DIGEST}


def build(**more: Any) -> dict[str, Any]:
    return {"state": "build", "build": 7, "recipe": {"image": NAME, "access": ACCESS, **more}}


def test_the_first_node_resolves_checks_and_reports_the_image() -> None:
    store, portal = Store(), Portal([build()])
    node = OwnImages(store, portal)
    report = node.prepare(WANTED, ignore)
    assert (report.state, report.digest) == ("ready", DIGEST)
    assert node.has_current(WANTED)
    assert store.pulled == [(EXACT, RegistryAccess("lab", "t0ken"))]
    assert portal.ended == [
        {
            "state": "done",
            "digest": DIGEST,
            "sha256": "",
            "lock": EXACT,
            "unpacked_bytes": 7 << 20,
            "modules": ["numpy", "torch"],
            "facts": {"content": "c" * 64, "python": "3.12.4", "libc": "glibc 2.36"},
        }
    ]
    assert "t0ken" not in portal.log and "sha256:aaa" in portal.log and "Python 3.12.4" in portal.log


def test_the_others_pull_exactly_that_digest() -> None:
    store, portal = Store(), Portal([READY])
    report = OwnImages(store, portal).prepare(WANTED, ignore)
    assert (report.state, report.digest) == ("ready", DIGEST)
    assert store.pulled == [(EXACT, RegistryAccess("lab", "t0ken"))]


def test_a_node_that_the_registry_refuses_waits_for_another_one_and_loads_the_image() -> None:
    store, portal = Store(failure=AWAY), Portal([READY])
    node = OwnImages(store, portal)
    report = node.prepare(WANTED, ignore)
    assert report.state == "preparing" and report.message == AwaitingOtherNode(AWAY)
    assert portal.failures == [None, AWAY]
    portal.archive = b"the image"
    report = node.prepare(WANTED, ignore)
    assert report.state == "ready" and store.loaded == [(b"the image", "c" * 64)]
    assert len(store.pulled) == 1  # the registry is not asked again at once


def test_without_archives_the_failure_of_the_registry_is_the_reason() -> None:
    report = OwnImages(Store(failure=AWAY), Portal([READY], coming=False)).prepare(WANTED, ignore)
    assert (report.state, report.message) == ("failed", AWAY)


def test_an_image_that_does_not_fit_is_not_fetched_from_elsewhere() -> None:
    portal = Portal([READY], archive=b"x")
    report = OwnImages(Store(failure=ImageTooLarge(NAME, 9, 1)), portal).prepare(WANTED, ignore)
    assert report.state == "failed" and portal.failures == [None]


def test_a_damaged_archive_is_refused() -> None:
    store = Store(failure=AWAY)
    report = OwnImages(store, Portal([READY], archive=b"x", sha256="0" * 64)).prepare(WANTED, ignore)
    assert report.state == "failed" and isinstance(report.message, DamagedImage) and not store.loaded


def test_a_node_that_has_the_image_sends_it() -> None:
    store, portal = Store(failure=AWAY), Portal([READY, build(image=EXACT, send=True)])
    store.sources.add(DIGEST)
    store.prepared.add(DIGEST)
    node = OwnImages(store, portal)
    node.prepare(WANTED, ignore)
    asked = WantedEnvironment("mine", OWN_IMAGE, "r1", 1, send=DIGEST)
    assert not node.has_current(asked)
    assert node.prepare(asked, ignore).digest == DIGEST
    assert node.has_current(asked)
    assert portal.has == ["", DIGEST]
    assert portal.sent == b"an image" and not store.pulled
    assert portal.ended[0]["sha256"] == hashlib.sha256(b"an image").hexdigest()


def test_an_image_that_lacks_something_fails_the_build_with_the_fix() -> None:
    portal = Portal([build()])
    report = OwnImages(Store(unfit=NoPython(NAME, "3.10")), portal).prepare(WANTED, ignore)
    assert (report.state, report.message) == ("failed", NoPython(NAME, "3.10"))
    assert portal.ended == [
        {"state": "failed", "message": NoPython(NAME, "3.10").data(), "detail": NoPython(NAME, "3.10").text}
    ]


def test_a_job_that_needs_an_earlier_image_makes_the_node_fetch_it() -> None:
    store, portal = Store(), Portal([READY])
    keeper = EnvironmentKeeper(FakeEnvironments(), images=OwnImages(store, portal))
    with pytest.raises(NotReadyError):
        keeper.require(OWN_IMAGE, DIGEST)
    keeper.start()
    try:
        _until(lambda: DIGEST in store.prepared)
    finally:
        keeper.stop()
    keeper.require(OWN_IMAGE, DIGEST)
    keeper.tidy(())
    assert not store.prepared


def test_a_node_without_an_engine_reports_nothing_about_images() -> None:
    keeper = EnvironmentKeeper(FakeEnvironments())
    keeper.set_wanted([WANTED, WantedEnvironment("python")])
    assert [each["key"] for each in keeper.reports()] == ["python"]


def test_a_refusal_of_the_portal_is_the_reason() -> None:
    class Refusing(Portal):
        def image_source(self, digest: str, failure: Message | None = None) -> dict[str, Any]:
            raise PortalRefusedError(404, "This image is not known.", "not_found")

    report = OwnImages(Store(), Refusing([READY])).prepare(WANTED, ignore)
    assert report.state == "failed" and "not known" in report.detail


def _until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
