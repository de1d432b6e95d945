"""Gets the layers of environments with a recipe: from the portal, or by building them for all nodes of this kind.

A layer is a folder of packages that a job has in addition to those of its base. The portal decides which node builds; this
node asks it (``claim``) each time that it prepares an environment whose layer it lacks.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from runners.agent.portal_client import PortalError, PortalRefusedError, PortalUnavailableError
from runners.environments.builds import BaseEnvironments, Report
from runners.environments.layers import build, store
from runners.environments.layers.base import Base, kind_of
from runners.environments.layers.build import BuiltLayer
from runners.environments.layers.recipe import Recipe
from runners.environments.preparing import PrepareError, Progress, cache_home, temporary_folder
from runners.messages import Message, message_from
from runners.messages.builds import (
    FetchingLayer,
    PortalRefusedLayer,
    SendingLayer,
    UnpackingLayer,
)
from runners.messages.environment_failures import SystemRefused, UnknownEnvironment

logger = logging.getLogger(__name__)

PIECE_BYTES = 8 * 1024 * 1024
"""Of an archive, in each request to the portal."""
PIECE_TRIES = 5
TRY_PAUSE_SECONDS = 2.0
REPORT_SECONDS = 2.0
"""Between two reports about a running build."""
LOG_PIECE_BYTES = 128 * 1024
UNUSED_SECONDS = 14 * 24 * 3600.0
"""How long a layer is kept that nothing uses; fetching it again takes seconds."""


class BuildCancelledError(Exception):
    """The build that this node makes was cancelled, or given to another node."""


@dataclass(frozen=True, slots=True)
class WantedEnvironment:
    """An environment that the portal wants on this node. Without a recipe it is prepared from the files of this release."""

    key: str
    base: str = ""
    """The key of the environment below its layer."""
    recipe: str = ""
    generation: int = 0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "WantedEnvironment":
        return cls(
            str(data["key"]), str(data.get("base", "")), str(data.get("recipe", "")), int(data.get("generation", 0))
        )


def wanted_environments(reply: Mapping[str, Any]) -> list[WantedEnvironment]:
    """Return the environments of a reply. A portal of an earlier release names only the curated ones, by their keys."""
    if "all_environments" in reply:
        return [WantedEnvironment.from_json(each) for each in reply["all_environments"]]
    return [WantedEnvironment(str(key)) for key in reply.get("environments", ())]


@dataclass(frozen=True, slots=True)
class CurrentLayer:
    """The layer of an environment on this node, and the request that it answers."""

    wanted: WantedEnvironment
    digest: str
    final: bool = True
    """False while another node builds the layer that the portal wants instead."""


class LayerPortal(Protocol):
    def claim_environment(self, key: str, kind: str) -> dict[str, Any]: ...
    def report_build(self, build: int, report: dict[str, Any]) -> int: ...
    def put_archive_piece(self, build: int, offset: int, content: bytes) -> int: ...
    def end_build(self, build: int, result: dict[str, Any]) -> None: ...
    def fetch_layer(self, digest: str, into: BinaryIO, progress: Callable[[int, int], None]) -> str: ...


class Layers:
    """The layers on this node. ``bases`` prepares what is below them."""

    def __init__(self, bases: BaseEnvironments, portal: LayerPortal) -> None:
        self._bases = bases
        self._portal = portal
        self._lock = threading.Lock()
        self._reports: dict[str, Report] = {}
        self._current: dict[str, CurrentLayer] = {}
        self._fetching: dict[str, Message] = {}

    def reports(self) -> list[Report]:
        with self._lock:
            return [self._reports[key] for key in sorted(self._reports)]

    def has(self, digest: str) -> bool:
        """Whether a layer is here. It counts as used now."""
        if store.path_of(digest) is None:
            return False
        store.mark_used(digest)
        return True

    def tidy(self, needed: Collection[str]) -> None:
        """Delete layers that neither the portal wants nor a container of this node needs, some time after their last use."""
        with self._lock:
            current = {each.digest for each in self._current.values()}
        keep = {*current, *needed}
        for digest in keep:
            store.mark_used(digest)  # for other agents of this machine, which share the folder
        store.tidy(keep, UNUSED_SECONDS)

    def step_of(self, digest: str) -> Message | None:
        """Return how far the fetching of a layer is; None before it begins."""
        with self._lock:
            return self._fetching.get(digest)

    def has_current(self, wanted: WantedEnvironment) -> bool:
        """Whether the layer that the portal wants is here, with its base."""
        with self._lock:
            current = self._current.get(wanted.key)
        return (
            current is not None
            and current.final
            and current.wanted == wanted
            and store.path_of(current.digest) is not None
            and self._bases.reference_of(wanted.base) is not None
        )

    def prepare(self, wanted: WantedEnvironment, progress: Progress) -> Report:
        """Get the layer of an environment, or build it. The report is *preparing* while another node builds it."""
        with self._lock:
            before = self._current.get(wanted.key)
        stays = before is not None and store.path_of(before.digest) is not None

        def report(percent: int, step: Message) -> None:
            if not stays:  # jobs use the layer of before until the new one is here
                self._record(Report(wanted.key, state="preparing", progress_percent=percent, message=step))
            progress(percent, step)

        try:
            return self._prepare(wanted, report)
        except PrepareError as error:
            failed = Report(wanted.key, state="failed", message=error.failure)
        except PortalRefusedError as error:
            failed = Report(wanted.key, state="failed", message=PortalRefusedLayer(error.message.text))
        except OSError as error:
            failed = Report(wanted.key, state="failed", message=SystemRefused(str(error)))
        if stays and before is not None:
            logger.warning("%s could not be renewed: %s", wanted.key, failed.detail)
            return self._ready(wanted, before.digest)
        return self._record(failed)

    def _prepare(self, wanted: WantedEnvironment, progress: Progress) -> Report:
        if self._bases.reference_of(wanted.base) is None:
            prepared = self._bases.prepare(wanted.base, progress)
            if prepared.state != "ready":
                return self._record(Report(wanted.key, state="failed", message=prepared.message))
        base = self._bases.base_of(wanted.base)
        if base is None:
            raise PrepareError(UnknownEnvironment(wanted.base))
        claim = self._portal.claim_environment(wanted.key, kind_of(base))
        match claim["state"]:
            case "ready":
                self.fetch(str(claim["digest"]), progress)
                return self._ready(wanted, str(claim["digest"]), final=claim.get("final") is not False)
            case "build":
                recipe, fresh = Recipe.from_json(claim["recipe"]), bool(claim.get("fresh"))
                return self._ready(wanted, self._build(int(claim["build"]), recipe, base, progress, fresh))
            case "wait":
                message = message_from(claim["message"])
                percent = getattr(message, "percent", 0)
                return self._record(Report(wanted.key, state="preparing", progress_percent=percent, message=message))
            case _:
                return self._record(Report(wanted.key, state="failed", message=message_from(claim["message"])))

    def _ready(self, wanted: WantedEnvironment, digest: str, *, final: bool = True) -> Report:
        with self._lock:
            self._current[wanted.key] = CurrentLayer(wanted, digest, final)
        store.mark_used(digest)
        return self._record(Report(wanted.key, digest, "ready", 100))

    def _record(self, report: Report) -> Report:
        with self._lock:
            self._reports[report.key] = report
        return report

    # --- fetching ----------------------------------------------------------------------------------------------------

    def fetch(self, digest: str, progress: Progress) -> None:
        """Fetch a layer from the portal, unless it is here. Raises PrepareError or PortalError."""
        if store.path_of(digest) is not None:
            return
        with temporary_folder(cache_home(), "schedulearn-layer-") as folder:
            archive = folder / "layer.tar"

            def arrived(done: int, total: int) -> None:
                step = FetchingLayer(done >> 20, total >> 20)
                with self._lock:
                    self._fetching[digest] = step
                progress(int(90 * done / max(1, total)), step)

            with archive.open("wb") as file:
                sha256 = self._portal.fetch_layer(digest, file, arrived)
            progress(92, UnpackingLayer())
            try:
                store.unpack(archive, digest, sha256)
            finally:
                with self._lock:
                    self._fetching.pop(digest, None)

    # --- building ----------------------------------------------------------------------------------------------------

    def _build(self, number: int, recipe: Recipe, base: Base, progress: Progress, fresh: bool) -> str:
        """Build a layer for all nodes of this kind, send it, and return its digest."""
        log = cache_home() / "logs" / f"build-{number}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
        with self._reporting(number, log, progress) as report:
            try:
                layer = build.build_layer(recipe, base, log, report, fresh=fresh)
                self._send(number, layer, report)
            except PrepareError as error:
                self._end(number, {"state": "failed", "message": error.failure.data(), "detail": error.failure.text})
                raise
            except OSError as error:
                failure = SystemRefused(str(error))
                self._end(number, {"state": "failed", "message": failure.data(), "detail": failure.text})
                raise
        return layer.digest

    @contextmanager
    def _reporting(self, number: int, log: Path, progress: Progress) -> Iterator[Progress]:
        """Send the log and the progress of a build to the portal. Yields the progress to call; it raises
        BuildCancelledError once the portal has ended the build."""
        reporter = _BuildReporter(number, log, self._portal)
        reporter.start()

        def report(percent: int, step: Message) -> None:
            reporter.now = (percent, step)
            if reporter.ended:
                raise BuildCancelledError
            progress(percent, step)

        try:
            yield report
        finally:
            reporter.stop()

    def _send(self, number: int, layer: BuiltLayer, progress: Progress) -> None:
        with temporary_folder(cache_home(), "schedulearn-layer-") as folder:
            packed = store.pack(layer.digest, folder / "layer.tar")
            total = packed.bytes
            with packed.path.open("rb") as file:
                sent = 0
                while piece := file.read(PIECE_BYTES):
                    progress(95, SendingLayer(sent >> 20, total >> 20))
                    sent = self._send_piece(number, sent, piece)
                    file.seek(sent)
            self._end(
                number,
                {
                    "state": "done",
                    "digest": layer.digest,
                    "sha256": packed.sha256,
                    "lock": layer.lock,
                    "unpacked_bytes": layer.bytes,
                    "modules": list(layer.modules),
                },
            )

    def _send_piece(self, number: int, offset: int, piece: bytes) -> int:
        """Send a piece, and return how many bytes the portal has. A broken connection is tried again a few times."""
        for left in reversed(range(PIECE_TRIES)):
            try:
                return self._portal.put_archive_piece(number, offset, piece)
            except PortalUnavailableError:
                if not left:
                    raise
                time.sleep(TRY_PAUSE_SECONDS)
        raise AssertionError

    def _end(self, number: int, result: dict[str, Any]) -> None:
        try:
            self._portal.end_build(number, result)
        except PortalRefusedError as error:
            if error.code == "ended":
                raise BuildCancelledError from error
            raise


class _BuildReporter:
    """Sends what a build has logged, and how far it is, every few seconds."""

    def __init__(self, number: int, log: Path, portal: LayerPortal) -> None:
        self.number = number
        self.now: tuple[int, Message | None] = (0, None)
        self.ended = False
        self._log = log
        self._portal = portal
        self._read = 0
        """How much of the log is read; ``_piece`` is what follows, until the portal has it."""
        self._piece = b""
        self._offset = 0
        """How many bytes the portal has. Bytes that are no text become longer on the way."""
        self._full = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="build report", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self.ended:
            over = self._over.wait(REPORT_SECONDS)
            self._report()
            if over:
                return

    def _report(self) -> None:
        percent, step = self.now
        if not self._piece and not self._full:
            self._piece = self._next_piece()
        text = self._piece.decode(errors="replace")
        report = {
            "percent": percent,
            "message": step.data() if step else None,
            "offset": self._offset,
            "log": text,
        }
        try:
            size = self._portal.report_build(self.number, report)
        except PortalRefusedError as error:
            self.ended = error.code == "ended"
            return
        except PortalError:
            return  # the same piece is sent again
        expected = self._offset + len(text.encode())
        self._full = size != expected
        self._offset, self._piece = expected, b""

    def _next_piece(self) -> bytes:
        """Return what the log has now, in whole lines if there is one."""
        with self._log.open("rb") as file:
            file.seek(self._read)
            piece = file.read(LOG_PIECE_BYTES)
        piece = piece[: piece.rfind(b"\n") + 1] or piece
        self._read += len(piece)
        return piece
