"""What environments have in common that one node builds for all nodes of its kind: layers of packages, and images of projects.

The portal decides which node builds; this node asks it (``claim``) each time that it prepares an environment which it lacks.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from runners.agent.portal_client import PortalError, PortalRefusedError, PortalUnavailableError
from runners.environments.builds import Report
from runners.environments.preparing import PrepareError, Progress, cache_home, exclusive_lock
from runners.messages import Message, message_from
from runners.messages.builds import PortalRefusedLayer, UnexpectedError
from runners.messages.environment_failures import EngineFailed, SystemRefused
from runners.runtime import EngineError
from runners.spec import OWN_IMAGE

PIECE_BYTES = 8 * 1024 * 1024
"""Of an archive, in each request to the portal."""
PIECE_TRIES = 5
TRY_PAUSE_SECONDS = 2.0
REPORT_SECONDS = 2.0
"""Between two reports about a running build."""
LOG_PIECE_BYTES = 128 * 1024
UNUSED_SECONDS = 14 * 24 * 3600.0
"""How long is kept what nothing uses; fetching it again takes seconds to minutes."""


class AgentStoppedError(Exception):
    """The agent stops: what is being prepared is dropped."""


class BuildCancelledError(Exception):
    """The build that this node makes was cancelled, or given to another node."""


@dataclass(frozen=True, slots=True)
class WantedEnvironment:
    """An environment that the portal wants on this node. Without a recipe it is prepared from the files of this release."""

    key: str
    base: str = ""
    """The key of the environment below its layer, or ``OWN_IMAGE``."""
    recipe: str = ""
    generation: int = 0
    send: str = ""
    """The digest of an image that nodes which have it are asked to send to the portal."""
    project: int = 0
    """The number of its project; 0 if all projects may use it, or for a portal of an earlier release."""

    @property
    def is_image(self) -> bool:
        return self.base == OWN_IMAGE

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "WantedEnvironment":
        texts = {name: str(data.get(name, "")) for name in ("base", "recipe", "send")}
        generation, project = int(data.get("generation", 0)), int(data.get("project", 0))
        return cls(str(data["key"]), **texts, generation=generation, project=project)


@dataclass(frozen=True, slots=True)
class CurrentLayer:
    """The layer of an environment on this node, and the request that it answers."""

    wanted: WantedEnvironment
    digest: str
    final: bool = True
    """False until the layer is here that the portal wants instead."""


class ReportsBuilds(Protocol):
    """Where a build is reported to, and what it made is sent."""

    def report_build(self, build: int, report: dict[str, Any]) -> int: ...
    def put_archive_piece(self, build: int, offset: int, content: bytes) -> int: ...
    def end_build(self, build: int, result: dict[str, Any]) -> None: ...


class BuildPortal(ReportsBuilds, Protocol):
    def claim_environment(self, key: str, kind: str, has: str = "") -> dict[str, Any]: ...
    def fetch_layer(self, digest: str, into: BinaryIO, progress: Callable[[int, int], None]) -> str: ...
    def image_source(self, digest: str, failure: Message | None = None) -> dict[str, Any]: ...


class SharedEnvironments(ABC):
    """Environments of one sort on this node. Safe to share between threads."""

    def __init__(self, portal: BuildPortal) -> None:
        self._portal = portal
        self._lock = threading.Lock()
        self._reports: dict[str, Report] = {}
        self._current: dict[str, CurrentLayer] = {}
        self._fetching: dict[str, Message] = {}

    # what differs

    @abstractmethod
    def has(self, digest: str) -> bool:
        """Whether jobs can use what has this digest. It counts as used now."""

    @abstractmethod
    def fetch(self, digest: str, progress: Progress) -> None:
        """Get what has this digest, unless it is here. Raises PrepareError, EngineError or PortalError."""

    @abstractmethod
    def tidy(self, needed: Collection[str]) -> None:
        """Delete what neither the portal wants nor a container of this node needs, some time after its last use."""

    @abstractmethod
    def _is_here(self, digest: str) -> bool: ...

    @abstractmethod
    def _prepare(self, wanted: WantedEnvironment, progress: Progress) -> Report: ...

    # what they share

    def has_current(self, wanted: WantedEnvironment) -> bool:
        """Whether what the portal wants is here."""
        with self._lock:
            current = self._current.get(wanted.key)
        return current is not None and current.final and current.wanted == wanted and self._is_here(current.digest)

    def reports(self) -> list[Report]:
        with self._lock:
            return [self._reports[key] for key in sorted(self._reports)]

    def step_of(self, digest: str) -> Message | None:
        """Return how far the fetching of a digest is; None while it is not fetched."""
        with self._lock:
            return self._fetching.get(digest)

    @contextmanager
    def _fetching_of(self, digest: str, progress: Progress) -> Iterator[Progress]:
        """Yield the progress by which ``step_of`` knows how far a digest is, until it is here or cannot be fetched. A digest is
        fetched once at a time: another thread may need it for a container."""

        def report(percent: int, step: Message) -> None:
            with self._lock:
                self._fetching[digest] = step
            progress(percent, step)

        try:
            with exclusive_lock(cache_home() / "locks" / f"fetch-{digest}", report, 0):
                yield report
        finally:
            with self._lock:
                self._fetching.pop(digest, None)

    def current_digests(self) -> set[str]:
        with self._lock:
            return {each.digest for each in self._current.values()}

    def prepare(self, wanted: WantedEnvironment, progress: Progress) -> Report:
        """Get an environment, or build it. The report is *preparing* while another node builds it, and *failed* if it should
        be tried again later, also while jobs use what was there before."""
        with self._lock:
            before = self._current.get(wanted.key)
        stays = before is not None and self._is_here(before.digest)

        def report(percent: int, step: Message) -> None:
            if not stays:  # jobs use what was there before until the new one is here
                self._record(Report(wanted.key, state="preparing", progress_percent=percent, message=step))
            progress(percent, step)

        try:
            return self._prepare(wanted, report)
        except (PrepareError, PortalRefusedError, EngineError, OSError) as error:
            failed = Report(wanted.key, state="failed", message=failure_of(error))
        if stays and before is not None:
            self._ready(wanted, before.digest, final=False)
            return failed
        return self._record(failed)

    def _waiting(self, wanted: WantedEnvironment, message: Message, state: Any = "preparing") -> Report:
        percent = getattr(message, "percent", 0)
        return self._record(Report(wanted.key, state=state, progress_percent=percent, message=message))

    def _answered(self, wanted: WantedEnvironment, claim: Mapping[str, Any]) -> Report:
        """Return the report for a claim that is neither ready nor to be built here."""
        state = "preparing" if claim["state"] == "wait" else "failed"
        return self._waiting(wanted, message_from(claim["message"]), state)

    def _ready(self, wanted: WantedEnvironment, digest: str, *, final: bool = True) -> Report:
        with self._lock:
            self._current[wanted.key] = CurrentLayer(wanted, digest, final)
        return self._record(Report(wanted.key, digest, "ready", 100))

    def _record(self, report: Report) -> Report:
        with self._lock:
            self._reports[report.key] = report
        return report

    # --- building ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _build_of(self, number: int, progress: Progress) -> Iterator["ReportedBuild"]:
        """Report a build to the portal: its log, its progress, and why it fails. The caller ends one that succeeds.

        Every error ends the build there, except when the agent stops or the portal cannot be reached: this node is then given
        the build again.
        """
        build = ReportedBuild(number, self._portal, progress)
        try:
            build.start()
            yield build
        except (AgentStoppedError, BuildCancelledError, PortalUnavailableError):
            raise
        except Exception as error:
            if isinstance(error, PortalRefusedError) and error.code == "ended":
                raise BuildCancelledError from error
            build.fail(failure_of(error))
            raise
        finally:
            build.stop()


def failure_of(error: Exception) -> Message:
    """Return why an environment could not be built or fetched, as a message."""
    match error:
        case PrepareError():
            return error.failure
        case PortalRefusedError():
            return PortalRefusedLayer(error.message.text)
        case EngineError():
            return EngineFailed(error.message)
        case OSError():
            return SystemRefused(str(error))
        case _:
            return UnexpectedError(f"{type(error).__name__}: {error}")


class ReportedBuild:
    """A build of this node, as the portal sees it: what it has logged and how far it is, every few seconds, and its end.
    ``kind`` is part of the name of its log."""

    def __init__(self, number: int, portal: ReportsBuilds, progress: Progress, kind: str = "build") -> None:
        self.log = cache_home() / "logs" / f"{kind}-{number}.log"
        self._number = number
        self._portal = portal
        self._progress = progress
        self._now: tuple[int, Message | None] = (0, None)
        self._ended = False
        self._read = 0
        """How much of the log is read; ``_piece`` is what follows, until the portal has it."""
        self._piece = b""
        self._offset = 0
        """How many bytes the portal has. Bytes that are no text become longer on the way."""
        self._full = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="build report", daemon=True)

    def start(self) -> None:
        """Begin to report, with an empty log. Raises OSError."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")
        self._thread.start()

    def stop(self) -> None:
        """Send what is left of the log, and nothing more after it."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def progress(self, percent: int, step: Message) -> None:
        """Set how far the build is; a step that begins again lowers no percentage. Raises BuildCancelledError once the portal
        has ended it."""
        self._now = (max(percent, self._now[0]), step)
        if self._ended:
            raise BuildCancelledError
        self._progress(*self._now)

    def send_file(self, path: Path, step: Callable[[int, int], Message]) -> None:
        """Send an archive in pieces. ``step`` gets the MiB that the portal has, and those of the whole."""
        total = path.stat().st_size
        with path.open("rb") as file:
            sent = 0
            while piece := file.read(PIECE_BYTES):
                self.progress(95, step(sent >> 20, total >> 20))
                sent = self._send_piece(sent, piece)
                file.seek(sent)

    def _send_piece(self, offset: int, piece: bytes) -> int:
        """Send a piece, and return how many bytes the portal has. A broken connection is tried again a few times."""
        for left in reversed(range(PIECE_TRIES)):
            try:
                return self._portal.put_archive_piece(self._number, offset, piece)
            except PortalUnavailableError:
                if not left:
                    raise
                time.sleep(TRY_PAUSE_SECONDS)
        raise AssertionError

    def fail(self, failure: Message) -> None:
        self.end({"state": "failed", "message": failure.data(), "detail": failure.text})

    def end(self, result: dict[str, Any]) -> None:
        """Send the rest of the log and the result. The portal accepts no log of a build that has ended."""
        self.stop()
        try:
            self._portal.end_build(self._number, result)
        except PortalRefusedError as error:
            if error.code == "ended":
                raise BuildCancelledError from error
            raise

    def _run(self) -> None:
        over = False
        while not over and not self._ended:
            over = self._over.wait(REPORT_SECONDS)
            while self._report() and over:
                pass  # the rest of the log

    def _report(self) -> bool:
        """Report the progress and the next piece of the log. Returns whether more of it may follow."""
        percent, step = self._now
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
            size = self._portal.report_build(self._number, report)
        except PortalRefusedError as error:
            self._ended = error.code == "ended"
            return False
        except PortalError:
            return False  # the same piece is sent again
        expected = self._offset + len(text.encode())
        self._full = size != expected
        self._offset, self._piece = expected, b""
        return bool(text) and not self._full

    def _next_piece(self) -> bytes:
        """Return what the log has now, in whole lines if there is one."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            piece = file.read(LOG_PIECE_BYTES)
        piece = piece[: piece.rfind(b"\n") + 1] or piece
        self._read += len(piece)
        return piece
