"""Fetches the files of one dataset into a folder: several connections, each file checked, what is there already kept.

The manifest has a line for each file, sorted by path (``portal/storage/manifests.py``). Consecutive files are fetched as one
stream, because a million requests would take an hour. Files that another version on this node has under the same path are
linked. An agent that was killed continues: files that have their name are complete, of others the bytes that arrived are kept.
"""

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from runners.agent.portal_client import PortalUnavailableError
from runners.messages.datasets import DatasetDamaged
from runners.messages.portal import AnswerNotUnderstood
from runners.runtime import RunError
from runners.spec import SHA256

CONNECTIONS = 4
BATCH_FILES, BATCH_BYTES = 500, 32 << 20
"""How much is fetched by one request: a larger file alone."""
WAITING_BATCHES = 2 * CONNECTIONS
TRIES = 5
"""One after the other in which not one byte arrives."""
PAUSE_SECONDS = 2.0
MAX_LINE_BYTES = 8192
MAX_VERSIONS = 5
"""Other datasets on the node of which files are linked."""
READ_BYTES = 1 << 20
INVALID_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class DatasetPortal(Protocol):
    def dataset_pieces(self, container: str, sha256: str, part: str, **at: int) -> Generator[bytes, None, None]:
        """Yield the bytes of a ``manifest`` or of ``contents`` as they arrive."""
        ...


class FetchStoppedError(RunError):
    """No container needs the dataset any more."""

    def __init__(self, done: int) -> None:
        super().__init__("No job needs the dataset any more.")
        self.done = done


@dataclass(frozen=True, slots=True)
class ManifestLine:
    """A file of a dataset."""

    position: int
    """Where its line begins in the manifest, in bytes."""
    sha256: str
    size: int
    executable: bool
    path: str

    @classmethod
    def parse(cls, position: int, line: bytes) -> "ManifestLine":
        """Raise ValueError for what is not a file beneath the folder."""
        sha256, size, mark, path = line.decode().removesuffix("\n").split(" ", 3)
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or INVALID_CHARACTERS.search(path):
            raise ValueError("a file has an invalid path")
        if not SHA256.fullmatch(sha256) or mark not in ("x", "-") or not size.isdecimal() or len(size) > 16:
            raise ValueError("a line of the manifest is invalid")
        return cls(position, sha256, int(size), mark == "x", path)

    @property
    def content(self) -> tuple[str, int, bool]:
        return self.sha256, self.size, self.executable


def lines_of(manifest: Path) -> Iterator[ManifestLine]:
    """Yield the files of a manifest. Raises ValueError for an invalid line."""
    position = 0
    with manifest.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            yield ManifestLine.parse(position, line)
            position += len(line)


class DatasetFetch:
    """One fetch into ``part``. ``progress`` gets the bytes that are there so far; ``is_wanted`` returns whether to go on."""

    def __init__(
        self,
        portal: DatasetPortal,
        container: str,
        sha256: str,
        part: Path,
        progress: Callable[[int], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._portal, self._container, self._sha256 = portal, container, sha256
        self._part, self._files, self._incoming = part, part / "files", part / "incoming"
        self._progress, self._is_wanted = progress, is_wanted
        self._lock = threading.Lock()
        self._done = 0
        self._stop = threading.Event()
        self._arrived: dict[int, int] = {}
        """Bytes that an earlier agent got of files, by position."""

    def run(self, manifest_bytes: int, others: Sequence[Path] = ()) -> int:
        """Fetch everything that is missing; return the number of files. ``others``: folders of complete datasets.

        Raises PortalUnavailableError, PortalRefusedError, FetchStoppedError, or OSError when the disk is full.
        """
        trusted = self._trust_files()
        for folder in (self._files, self._incoming):
            make_folder(folder)
        self._arrived = {int(path.name): path.stat().st_size for path in self._incoming.iterdir()}
        manifest = self._fetch_manifest(manifest_bytes)
        try:
            count = sum(1 for _ in lines_of(manifest))
            for other in others[:MAX_VERSIONS]:
                self._link(manifest, other)
            self._fetch_files(manifest, trusted)
        except ValueError as error:
            manifest.unlink()
            raise PortalUnavailableError(AnswerNotUnderstood("GET manifest")) from error
        self._incoming.rmdir()
        for name in ("boot", "arriving.json"):
            (self._part / name).unlink(missing_ok=True)
        return count

    def _trust_files(self) -> bool:
        """Return whether files of an earlier fetch are as they were written: the machine was not restarted since."""
        record, boot = self._part / "boot", _boot_id()
        try:
            same = record.read_text() == boot
        except FileNotFoundError:
            same = not self._files.exists()
        record.write_text(boot)
        return same

    # --- the manifest -------------------------------------------------------------------------------------------------

    def _fetch_manifest(self, size: int) -> Path:
        path, arriving = self._part / "manifest", self._part / "manifest.new"
        if path.exists() and _digest_of(path) == self._sha256:
            return path
        left = TRIES
        while True:
            with arriving.open("ab") as file:
                before = file.tell()
                try:
                    if before < size:
                        for piece in self._portal.dataset_pieces(
                            self._container, self._sha256, "manifest", offset=before
                        ):
                            file.write(piece)
                            self._require_wanted()
                    break
                except PortalUnavailableError:
                    left = TRIES if file.tell() > before else left - 1
                    if not left:
                        raise
            self._pause()
        if _digest_of(arriving) != self._sha256:
            arriving.unlink()
            raise PortalUnavailableError(DatasetDamaged())
        arriving.rename(path)
        return path

    # --- files that are here ------------------------------------------------------------------------------------------

    def _link(self, manifest: Path, other: Path) -> None:
        """Link the files that another dataset has under the same path. Both manifests are sorted by path."""
        theirs = lines_of(other / "manifest")
        with contextlib.suppress(OSError, ValueError):
            there = next(theirs, None)
            for line in lines_of(manifest):
                key = line.path.encode()
                while there is not None and there.path.encode() < key:
                    there = next(theirs, None)
                if there is None:
                    return
                if there.path == line.path and there.content == line.content:
                    place = self._files / line.path
                    make_folders(self._files, place.parent)
                    with contextlib.suppress(FileExistsError):
                        place.hardlink_to(other / "files" / line.path)

    def _is_here(self, line: ManifestLine, trusted: bool) -> bool:
        place = self._files / line.path
        try:
            if place.stat().st_size == line.size and (trusted or _digest_of(place) == line.sha256):
                return True
        except FileNotFoundError:
            return False
        place.unlink()
        return False

    # --- files that are fetched ---------------------------------------------------------------------------------------

    def _fetch_files(self, manifest: Path, trusted: bool) -> None:
        free = threading.Semaphore(WAITING_BATCHES)
        errors: list[BaseException] = []

        def fetch(batch: list[ManifestLine]) -> None:
            try:
                if not self._stop.is_set():
                    self._fetch_batch(batch)
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits for all
                errors.append(error)
                self._stop.set()
            finally:
                free.release()

        with ThreadPoolExecutor(CONNECTIONS, "dataset") as pool:
            try:
                for batch in self._batches(manifest, trusted):
                    free.acquire()
                    if self._stop.is_set() or not self._is_wanted():
                        self._stop.set()
                        break
                    pool.submit(fetch, batch)
            except BaseException:
                self._stop.set()
                raise
        if errors:
            raise errors[0]
        if self._stop.is_set():
            raise FetchStoppedError(self._done)

    def _batches(self, manifest: Path, trusted: bool) -> Iterator[list[ManifestLine]]:
        """Yield consecutive files that are missing."""
        batch: list[ManifestLine] = []
        size = 0
        for line in lines_of(manifest):
            here = self._is_here(line, trusted)
            if here:
                self._count(line.size)
            if batch and (here or len(batch) >= BATCH_FILES or size + line.size > BATCH_BYTES):
                yield batch
                batch, size = [], 0
            if not here:
                if (arrived := self._arrived.get(line.position, 0)) <= line.size:
                    self._count(arrived)
                else:
                    (self._incoming / str(line.position)).unlink()
                batch.append(line)
                size += line.size
        if batch:
            yield batch

    def _fetch_batch(self, batch: list[ManifestLine]) -> None:
        done, left = 0, TRIES
        while done < len(batch):
            before, had = done, self._size_of(batch[done])
            arrived = had
            try:
                for state in self._receive(batch, done):
                    done, arrived = state
            except PortalUnavailableError as error:
                has_progress = (done > before or arrived > had) and not isinstance(error.message, DatasetDamaged)
                left = TRIES if has_progress else left - 1
                if not left:
                    raise
                self._pause()
            else:
                if done < len(batch) and (done, arrived) == (before, had):
                    left -= 1  # a connection that ended too early, without an error
                    if not left:
                        raise PortalUnavailableError(AnswerNotUnderstood("GET contents"))
                    self._pause()

    def _size_of(self, line: ManifestLine) -> int:
        """Return how much of a file has arrived."""
        try:
            return (self._incoming / str(line.position)).stat().st_size
        except FileNotFoundError:
            return 0

    def _receive(self, batch: list[ManifestLine], done: int) -> Iterator[tuple[int, int]]:
        """Receive the files of a batch from one on; yield how many are complete, and the bytes of the next, after each piece."""
        with contextlib.ExitStack() as stack:
            pieces: Iterator[bytes] | None = None
            rest = b""
            while done < len(batch):
                with _ArrivingFile(self._incoming, batch[done]) as file:
                    if pieces is not None and file.size:  # it comes as a whole now, after the files before it
                        self._count(-file.size)
                        file.restart()
                    if pieces is None and file.left:
                        pieces = stack.enter_context(contextlib.closing(self._pieces(batch, done, file.size)))
                    while file.left:
                        if not rest and (rest := next(pieces or iter(()), b"")) == b"":
                            return
                        taken, rest = rest[: file.left], rest[file.left :]
                        file.write(taken)
                        self._count(len(taken))
                        self._require_wanted()
                        yield done, file.size
                    if not file.is_intact:
                        file.discard()
                        self._count(-batch[done].size)
                        raise PortalUnavailableError(DatasetDamaged())
                    self._place(batch[done], file.path)
                done += 1
                yield done, 0

    def _pieces(self, batch: list[ManifestLine], done: int, offset: int) -> Generator[bytes, None, None]:
        position, count = batch[done].position, len(batch) - done
        return self._portal.dataset_pieces(
            self._container, self._sha256, "contents", line=position, count=count, offset=offset
        )

    def _place(self, line: ManifestLine, arrived: Path) -> None:
        place = self._files / line.path
        make_folders(self._files, place.parent)
        arrived.chmod(0o555 if line.executable else 0o444)
        arrived.rename(place)

    def _count(self, count: int) -> None:
        with self._lock:
            self._done += count
            done = self._done
        self._progress(done)

    def _require_wanted(self) -> None:
        if self._stop.is_set() or not self._is_wanted():
            raise FetchStoppedError(self._done)

    def _pause(self) -> None:
        self._stop.wait(PAUSE_SECONDS)
        self._require_wanted()


class _ArrivingFile:
    """A file of which bytes arrive. Those of an earlier connection, or agent, are read again for its hash."""

    def __init__(self, incoming: Path, line: ManifestLine) -> None:
        self.path = incoming / str(line.position)
        self._line = line
        self._file: BinaryIO = self.path.open("ab+")
        self._digest = hashlib.sha256()
        self.size = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        for piece in iter(lambda: self._file.read(READ_BYTES), b""):
            self._digest.update(piece)

    def __enter__(self) -> "_ArrivingFile":
        return self

    def __exit__(self, *about: Any) -> None:
        self._file.close()

    @property
    def left(self) -> int:
        return self._line.size - self.size

    @property
    def is_intact(self) -> bool:
        self._file.flush()
        return self._digest.hexdigest() == self._line.sha256

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._digest.update(piece)
        self.size += len(piece)

    def restart(self) -> None:
        """Forget the bytes that have arrived."""
        self._file.truncate(0)
        self.size, self._digest = 0, hashlib.sha256()

    def discard(self) -> None:
        self.path.unlink()


def make_folders(top: Path, folder: Path) -> None:
    """Make a folder and those above it up to ``top``, which users of all jobs may read, whatever the umask."""
    if not folder.is_dir():
        make_folders(top, folder.parent)
        make_folder(folder)


def make_folder(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o755)


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text()
    except OSError:
        return ""
