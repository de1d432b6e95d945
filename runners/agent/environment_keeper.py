"""Prepares the environments that the portal wants in the background, a few at a time, and reports the progress."""

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.agent.actions import NotReadyError
from runners.agent.layers import Layers
from runners.agent.own_images import AwaitingImageError, OwnImages
from runners.agent.portal_client import Backoff, PortalError
from runners.agent.shared_environments import (
    AgentStoppedError,
    BuildCancelledError,
    BuildPortal,
    SharedEnvironments,
    WantedEnvironment,
)
from runners.environments.builds import BaseEnvironments, Environments, Report
from runners.environments.own_images import OwnImageStore
from runners.environments.preparing import Progress
from runners.host.node_files import read_own_json, write_json
from runners.messages import Message
from runners.messages.containers import EnvironmentFailed, EnvironmentInPreparation
from runners.messages.environments import BehindOthers
from runners.runtime import CreateError, EngineError
from runners.spec import OWN_IMAGE

logger = logging.getLogger(__name__)

CHECK_SECONDS = 30.0
"""Between two checks whether ready environments still exist."""
FIRST_RETRY_SECONDS = 30.0
MAX_RETRY_SECONDS = 1800.0
ELSEWHERE_SECONDS = 3.0
"""Until the portal is asked again about an environment that another node builds, or whose build was cancelled."""
MAX_BUILDS = 4
"""How many environments are prepared at a time."""
MAX_BUILDS_OF_PROJECT, MAX_BUILDS_OF_LAB = 1, 2
"""How many of these are of one project, so that its builds do not hold up those of others, and of no project."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """An environment that is being prepared."""

    wanted: WantedEnvironment
    with_base: bool
    """Whether a curated environment is prepared, itself or below a layer: one at a time is."""


class EnvironmentKeeper:
    """Prepares environments, each in a thread, while other threads ask for them. One more thread fetches what containers need,
    so that these wait for no build.

    After a restart of the agent, those that were ready come first: they take a second each, a new one takes minutes.
    """

    def __init__(
        self,
        environments: Environments,
        ready_file: Path | None = None,
        layers: Layers | None = None,
        images: OwnImages | None = None,
    ) -> None:
        """``ready_file`` keeps the keys of those that are ready, for the next start. ``layers`` gets environments with a
        recipe, and ``images`` those that are an image."""
        self._environments = environments
        self._layers = layers
        self._images = images
        self._ready_file = ready_file
        self._ready_before_start = _read_keys(ready_file) if ready_file else set()
        """Those that were ready before the start and have not been looked at since."""
        self._stored = set(self._ready_before_start)
        self._wanted: tuple[WantedEnvironment, ...] = ()
        self._missing: tuple[tuple[SharedEnvironments, str], ...] = ()
        """Digests of layers and images that containers need and that are not here, although the portal expects them."""
        self._changed = threading.Condition()
        self._stopping = False
        self._running: tuple[Preparation, ...] = ()
        self._retry: dict[WantedEnvironment, tuple[float, Backoff]] = {}
        self._builders: list[threading.Thread] = []
        self._starter = threading.Thread(target=self._work, name="environments", daemon=True)
        self._fetcher = threading.Thread(target=self._fetch_missing, name="environment fetches", daemon=True)

    def start(self) -> None:
        self._starter.start()
        self._fetcher.start()

    def stop(self, seconds: float = 12.0) -> None:
        """End all threads with their compilers and installers, which delete their unfinished work within a second."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        until = time.monotonic() + seconds
        _join(self._starter, until)  # which starts no more
        for thread in (self._fetcher, *self._builders):
            _join(thread, until)

    def set_wanted(self, wanted: Sequence[WantedEnvironment]) -> None:
        """Set the environments to prepare, in this order. An environment that is not named any more is left as it is."""
        with self._changed:
            if self._wanted != tuple(wanted):
                self._wanted = tuple(wanted)
                self._changed.notify_all()

    def require(self, key: str, layer: str = "") -> None:
        """Raise NotReadyError while the environment, or the layer or image with this digest, is being prepared, and
        CreateError if that failed."""
        if key == OWN_IMAGE:
            self._require_shared(self._images, key, layer)
            return
        if self._environments.reference_of(key) is None:
            report = self._reports_by_key().get(key)
            if report is not None and report.state == "failed":
                raise CreateError(EnvironmentFailed(key, report.message))
            with self._changed:
                if key not in {each.key for each in self._wanted}:
                    self._wanted = (WantedEnvironment(key), *self._wanted)
                    self._changed.notify_all()
            raise NotReadyError(EnvironmentInPreparation(key, report.message if report else None))
        if layer:
            self._require_shared(self._layers, key, layer)

    def _require_shared(self, shared: SharedEnvironments | None, key: str, digest: str) -> None:
        if shared is None or shared.has(digest):
            return
        with self._changed:
            if (shared, digest) not in self._missing:
                self._missing = (*self._missing, (shared, digest))
                self._changed.notify_all()
        raise NotReadyError(EnvironmentInPreparation(key, shared.step_of(digest)))

    def tidy(self, needed: Collection[str]) -> None:
        """Delete layers and images that nothing uses, except those that containers need."""
        for shared in self._shared:
            try:
                shared.tidy(needed)
            except EngineError as error:
                logger.warning("Unused images could not be removed: %s", error)  # tried again later

    @property
    def _shared(self) -> list[SharedEnvironments]:
        return [shared for shared in (self._layers, self._images) if shared is not None]

    def _shared_for(self, wanted: WantedEnvironment) -> SharedEnvironments | None:
        return self._images if wanted.is_image else self._layers

    def reports(self) -> list[dict[str, Any]]:
        known = self._reports_by_key()
        with self._changed:
            wanted, running, retried = self._wanted, self._running, set(self._retry)
        able = [each for each in wanted if not each.is_image or self._images is not None]
        waiting = [
            Report(each.key, message=BehindOthers() if running and each not in retried else None)
            for each in able
            if each.key not in known
        ]
        return [report.to_json() for report in [*known.values(), *waiting]]

    def _reports_by_key(self) -> dict[str, Report]:
        shared = [report for each in self._shared for report in each.reports()]
        return {report.key: report for report in [*self._environments.reports(), *shared]}

    def _work(self) -> None:
        while not self._stopping:
            with self._changed:
                wanted, running = self._wanted, self._running
            self._store_ready_keys()
            try:
                if (preparation := self._next_to_prepare(wanted, running)) is not None:
                    self._begin(preparation)
                    continue
            except Exception:
                logger.exception("The next environment to prepare could not be determined; it is tried again.")
            with self._changed:
                if not self._stopping and self._wanted is wanted and self._running is running:  # else look again
                    self._changed.wait(self._pause())
        self._store_ready_keys()

    def _pause(self) -> float:
        """Return the seconds until an environment is to be tried again, or looked at. The caller holds the lock."""
        now = time.monotonic()
        return max(0.1, min([CHECK_SECONDS, *(at - now for at, _ in self._retry.values() if at > now)]))

    def _next_to_prepare(
        self, wanted: Sequence[WantedEnvironment], running: Sequence[Preparation]
    ) -> Preparation | None:
        if len(running) >= MAX_BUILDS:
            return None
        with self._changed:
            first, postponed = set(self._ready_before_start), {each: at for each, (at, _) in self._retry.items()}
        now = time.monotonic()
        for each in sorted(wanted, key=lambda each: each.key not in first):
            if now < postponed.get(each, now) or _must_wait(each, [other.wanted for other in running]):
                continue
            try:
                if self._is_here(each):
                    continue
                preparation = Preparation(each, self._lacks_base(each))
            except EngineError:
                return None  # it cannot be prepared either
            if not (preparation.with_base and any(other.with_base for other in running)):
                return preparation
        return None

    def _lacks_base(self, wanted: WantedEnvironment) -> bool:
        if wanted.is_image:
            return False
        return not wanted.recipe or self._environments.reference_of(wanted.base) is None

    def _begin(self, preparation: Preparation) -> None:
        with self._changed:
            self._running = (*self._running, preparation)
        thread = threading.Thread(target=self._run, args=(preparation,), name="environment", daemon=True)
        self._builders = [*(each for each in self._builders if each.is_alive()), thread]
        thread.start()

    def _run(self, preparation: Preparation) -> None:
        try:
            self._prepare(preparation.wanted)
        except AgentStoppedError:
            pass
        finally:
            with self._changed:
                self._running = tuple(each for each in self._running if each is not preparation)
                self._changed.notify_all()

    def _is_here(self, wanted: WantedEnvironment) -> bool:
        shared = self._shared_for(wanted)
        if wanted.is_image and shared is None:
            return True  # this node cannot have it
        if wanted.recipe and shared is not None:
            return shared.has_current(wanted)
        return self._environments.reference_of(wanted.key) is not None

    def _prepare(self, wanted: WantedEnvironment) -> None:
        key = wanted.key
        logger.info("Preparing the environment %s.", key)
        try:
            shared = self._shared_for(wanted)
            if wanted.recipe and shared is not None:
                report = shared.prepare(wanted, self._progress)
            else:
                report = self._environments.prepare(key, self._progress)
        except AgentStoppedError:
            raise
        except BuildCancelledError:
            logger.info("The build of the environment %s was cancelled.", key)
            self._ask_again_soon(wanted)
            return
        except PortalError as error:
            self._postpone(wanted)
            logger.warning("Preparing the environment %s was interrupted: %s", key, error)
            return
        except Exception:
            self._postpone(wanted)
            logger.exception("Preparing the environment %s failed; it is tried again.", key)
            return
        with self._changed:
            self._ready_before_start.discard(key)
        if report.state == "ready":
            with self._changed:
                self._retry.pop(wanted, None)
            logger.info("The environment %s is ready.", key)
        if report.state == "preparing" or (report.state == "ready" and not self._is_here(wanted)):
            self._ask_again_soon(wanted)  # another node builds it
        elif report.state != "ready":
            self._postpone(wanted)
            logger.warning("The environment %s could not be prepared: %s", key, report.detail)

    def _fetch_missing(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._missing or self._stopping)
                if self._stopping:
                    return
                shared, digest = self._missing[0]
            try:
                self._fetch(shared, digest)
            except AgentStoppedError:
                return

    def _fetch(self, shared: SharedEnvironments, digest: str) -> None:
        """Fetch what a container needs. It is asked for again as long as the container waits."""
        try:
            shared.fetch(digest, self._progress)
        except AgentStoppedError:
            raise
        except AwaitingImageError as error:
            logger.info("%s", error)
        except Exception as error:
            logger.warning("%s could not be fetched; it is tried again: %s", digest[:12], error)
        with self._changed:
            self._missing = tuple(each for each in self._missing if each != (shared, digest))

    def _store_ready_keys(self) -> None:
        if self._ready_file is None:
            return
        ready = {report.key for report in self._environments.reports() if report.state == "ready"}
        with self._changed:
            ready |= self._ready_before_start
        if ready == self._stored:
            return
        self._stored = ready
        try:
            write_json(self._ready_file, sorted(ready), 0o600)
        except OSError as error:  # only the order after the next start depends on it
            logger.warning("%s could not be written: %s", self._ready_file, error.strerror or error)

    def _ask_again_soon(self, wanted: WantedEnvironment) -> None:
        with self._changed:
            backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
            self._retry[wanted] = (time.monotonic() + ELSEWHERE_SECONDS, backoff)

    def _postpone(self, wanted: WantedEnvironment) -> None:
        with self._changed:
            known = self._retry.get(wanted)
            backoff = known[1] if known else Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
            self._retry[wanted] = (time.monotonic() + backoff.next_pause(), backoff)

    @property
    def _progress(self) -> Progress:
        def progress(percent: int, step: Message) -> None:
            if self._stopping:
                raise AgentStoppedError

        return progress


def _must_wait(wanted: WantedEnvironment, running: Sequence[WantedEnvironment]) -> bool:
    """Whether an environment waits for one that is being prepared: the same, one with the same packages, whose build would be
    given to this node again, or others of its project."""
    if any(other.key == wanted.key or (wanted.recipe and other.recipe == wanted.recipe) for other in running):
        return True
    same_project = sum(other.project == wanted.project for other in running)
    return same_project >= (MAX_BUILDS_OF_PROJECT if wanted.project else MAX_BUILDS_OF_LAB)


def _join(thread: threading.Thread, until: float) -> None:
    if thread.is_alive():
        thread.join(max(0.0, until - time.monotonic()))


def make_keeper(
    environments: Environments, own_images: OwnImageStore | None, portal: BuildPortal, home: Path
) -> EnvironmentKeeper:
    """Return the keeper of a node with what its runtime can have."""
    layers = Layers(environments, portal) if isinstance(environments, BaseEnvironments) else None
    images = OwnImages(own_images, portal) if own_images is not None else None
    return EnvironmentKeeper(environments, home / "environments.json", layers, images)


def wanted_environments(reply: Mapping[str, Any]) -> list[WantedEnvironment]:
    """Return the environments of a reply. A portal of an earlier release names only the curated ones, by their keys."""
    if "all_environments" in reply:
        return [WantedEnvironment.from_json(each) for each in reply["all_environments"]]
    return [WantedEnvironment(str(key)) for key in reply.get("environments", ())]


def _read_keys(file: Path) -> set[str]:
    keys = read_own_json(file)
    return {key for key in keys if isinstance(key, str)} if isinstance(keys, list) else set()


class FakeEnvironments:
    """The environments of the fake runtime: each of them is ready."""

    def __init__(self) -> None:
        self._asked: dict[str, Report] = {}

    def prepare(self, key: str, progress: Progress | None = None) -> Report:
        self._asked[key] = Report(key, "pretended", "ready", 100)
        return self._asked[key]

    def reports(self) -> list[Report]:
        return list(self._asked.values())

    def reference_of(self, key: str) -> str | None:
        return "pretended" if key in self._asked else None
