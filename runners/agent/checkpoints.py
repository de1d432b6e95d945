"""Sends the checkpoints of a job to the portal, and fetches them on the node where the job continues.

The portal keeps the newest *set* of each job: paths, sizes, times, and the SHA-256 of each piece of a file. A node sends
what has changed since, and only pieces that the portal lacks; the set changes once all of them have arrived. Before a start
for which the portal has a newer set, the node makes a new folder and replaces the old one with it as a whole. What the node
knows of its last set is in a file beside the folder: ``kept.json``.
"""

import contextlib
import errno
import hashlib
import os
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from runners.agent.journal import delete_tree
from runners.agent.portal_client import PortalRefusedError, PortalUnavailableError
from runners.host.exclusive import ExclusiveSection
from runners.host.node_files import FolderWalk, UnsafeFileError, open_beneath, read_own_json, write_json
from runners.messages import Message
from runners.messages.containers import CheckpointIncomplete, CheckpointsArrived, CheckpointsNotKept
from runners.messages.portal import (
    AnswerNotUnderstood,
    CheckpointDamaged,
    CheckpointsChanging,
    CheckpointsNotStored,
    CheckpointsTooLarge,
    TooManyCheckpointFiles,
)
from runners.runtime import CreateError

PIECE_BYTES = 16 << 20
"""The size of a piece in bytes, the same as in the portal."""
STABLE_SECONDS = 5.0
"""A folder in which nothing has changed for this long is taken to be a complete checkpoint."""
MAX_UNSTABLE_SECONDS = 60.0
"""The longest wait for a job that writes all the time; after it, only each single file is complete."""
MAX_FILES = 10_000
MAX_PATH_CHARACTERS = 500
MAX_OPEN_FILES = 256
"""The maximum number of files that stay open from reading to sending, so that replacing one does not matter."""
MAX_ROUNDS = 3
INVALID_CHARACTERS = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
SHA256 = re.compile(r"[0-9a-f]{64}")


class CheckpointPortal(Protocol):
    def checkpoints(self, container: str) -> dict[str, Any]: ...

    def change_checkpoints(
        self, container: str, changed: dict[str, Any], deleted: dict[str, int]
    ) -> dict[str, Any]: ...

    def put_checkpoint(self, container: str, sha256: str, content: bytes) -> None: ...

    def fetch_checkpoint(self, container: str, sha256: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of a set."""

    size: int
    modified_ns: int
    pieces: tuple[str, ...]

    def to_json(self) -> list[Any]:
        return [self.size, self.modified_ns, list(self.pieces)]

    @classmethod
    def from_json(cls, data: Any) -> "CheckpointFile":
        """Parse an entry. Raises TypeError or ValueError when ``data`` is not one."""
        size, modified_ns, pieces = data
        entry = cls(int(size), int(modified_ns), tuple(pieces))
        if not all(SHA256.fullmatch(sha256) for sha256 in entry.pieces) or entry.size > len(entry.pieces) * PIECE_BYTES:
            raise ValueError("A file's pieces are named by their SHA-256.")
        return entry


@dataclass(slots=True)
class CheckpointRecord:
    """The content of ``kept.json``: the set of this folder that the portal has, as far as this node knows."""

    version: int = 0
    """The version of the set that the folder was equal to."""
    files: dict[str, CheckpointFile] = field(default_factory=dict)
    users: list[str] = field(default_factory=list)
    """Containers for which the folder was prepared; while one of them lives, the agent does not change the folder."""

    @classmethod
    def read(cls, path: Path) -> "CheckpointRecord":
        data = read_own_json(path)
        try:
            files = {name: CheckpointFile.from_json(entry) for name, entry in data["files"].items()}
            return cls(int(data["version"]), files, [str(user) for user in data["users"]])
        except (TypeError, KeyError, ValueError, AttributeError):
            return cls()

    def write(self, path: Path) -> None:
        files = {name: entry.to_json() for name, entry in self.files.items()}
        write_json(path, {"version": self.version, "files": files, "users": self.users}, 0o600)


@dataclass(frozen=True, slots=True)
class NewestSet:
    """The newest set in the portal."""

    version: int
    files: dict[str, CheckpointFile]
    through_portal: bool
    """False when all nodes share one folder: nothing needs to be sent or fetched."""


class _ChangedError(Exception):
    """A file is no longer what it was when it was read."""


FileVersions = dict[str, tuple[int, int]]
"""By path: size in bytes, and modification time in nanoseconds."""


class JobCheckpoints:
    """The checkpoints of one job on this node, in ``home/checkpoints``. Sends or fetches in one thread at a time."""

    def __init__(self, home: Path, portal: CheckpointPortal) -> None:
        self.home = home
        self.folder = home / "checkpoints"
        self.complaint: Message | None = None
        """For the job's page when the portal did not keep them."""
        self._portal = portal
        self._section = ExclusiveSection("sending or fetching its checkpoints")
        self._changing_since: float | None = None
        self._refused: FileVersions = {}

    # --- to the portal ---

    def send(self, container: str, *, ended: bool) -> None:
        """Send what has changed; while a job runs, only when it has left the folder unchanged for a while.

        ``ended``: no container on this node writes any more. Raises PortalUnavailableError when the portal does not
        answer, and BusyError while another thread sends or fetches; try again later.
        """
        with self._section.enter():
            record = CheckpointRecord.read(self.home / "kept.json")
            seen: FileVersions = {}
            try:
                seen, complete = self._scan()
                changed = [path for path, each in seen.items() if not _is_unchanged(record.files.get(path), each)]
                deleted = {path: each.modified_ns for path, each in record.files.items() if path not in seen}
                deleted = deleted if complete else {}
                if not (changed or deleted) or (self._refused and seen == self._refused):
                    self._changing_since = None
                    return
                forced = ended or self._has_waited_long()
                if forced or not any(_is_fresh(seen[path][1]) for path in changed):
                    self._send(container, record, seen, changed, deleted, forced)
            except PortalRefusedError as refused:
                if refused.status == 401:
                    raise PortalUnavailableError(refused.message) from refused
                self._refused = seen
                self.complaint = CheckpointsNotKept(refused.message)
            except _ChangedError as error:
                if ended:
                    raise PortalUnavailableError(CheckpointsChanging()) from error

    def users(self) -> list[str]:
        return CheckpointRecord.read(self.home / "kept.json").users

    def _has_waited_long(self) -> bool:
        now = time.monotonic()
        self._changing_since = self._changing_since or now
        return now - self._changing_since > MAX_UNSTABLE_SECONDS

    def _scan(self) -> tuple[FileVersions, bool]:
        """Return the files of the folder, and whether these are all. Raises PortalRefusedError for what no set can hold."""
        walk, seen = FolderWalk(self.folder), {}
        for each in walk:
            if INVALID_CHARACTERS.search(each.path) or len(each.path) > MAX_PATH_CHARACTERS:
                continue  # a name that is not valid everywhere, and that no framework gives to a checkpoint
            seen[each.path] = (each.size, each.modified_ns)
            if len(seen) > MAX_FILES:
                raise PortalRefusedError(413, TooManyCheckpointFiles(MAX_FILES))
        return seen, walk.complete

    def _send(
        self,
        container: str,
        record: CheckpointRecord,
        seen: FileVersions,
        changed: Collection[str],
        deleted: dict[str, int],
        forced: bool,
    ) -> None:
        offer = self._change(container, {}, {})
        if not offer["through_portal"]:
            return
        if (
            offer["version"] < record.version
        ):  # the portal was restored from a backup, which may lack what was sent since
            record.version, record.files = 0, {}
            changed, deleted = list(seen), {}
        max_bytes = offer["most_bytes"]
        if (
            sum(size for size, _ in seen.values()) > max_bytes
        ):  # a sparse file costs a job nothing, and us hours to read
            raise PortalRefusedError(413, CheckpointsTooLarge(max_bytes >> 20))
        with contextlib.ExitStack() as stack:
            files: dict[str, BinaryIO] = {}
            entries: dict[str, CheckpointFile] = {}
            for path in changed:
                try:
                    entries[path] = self._read(path, max_bytes, stack, files)
                except _ChangedError:
                    if not forced:
                        return
            if not forced and self._scan()[0] != seen:
                return  # the folder changed while it was read
            entries_json = {path: entry.to_json() for path, entry in entries.items()}
            for _ in range(MAX_ROUNDS):
                answer = self._change(container, entries_json, deleted)
                if not answer["missing"]:
                    break
                self._send_missing(container, set(answer["missing"]), entries, files)
            else:
                raise PortalUnavailableError(CheckpointsNotStored())
        self._changing_since, self._refused, self.complaint = None, {}, None
        if answer["outdated"]:
            return
        record.files = {path: each for path, each in record.files.items() if path not in deleted} | entries
        if answer["before"] == record.version:
            record.version = answer["version"]
        record.write(self.home / "kept.json")

    def _change(self, container: str, changed: dict[str, Any], deleted: dict[str, int]) -> dict[str, Any]:
        answer = self._portal.change_checkpoints(container, changed, deleted)
        try:
            return {
                "before": int(answer["before"]),
                "version": int(answer["version"]),
                "most_bytes": int(answer["most_bytes"]),
                "missing": [str(sha256) for sha256 in answer["missing"]],
                "through_portal": bool(answer["through_portal"]),
                "outdated": bool(answer["outdated"]),
            }
        except (KeyError, TypeError, ValueError) as error:
            raise PortalUnavailableError(AnswerNotUnderstood("POST checkpoints")) from error

    def _read(
        self, path: str, max_bytes: int, stack: contextlib.ExitStack, files: dict[str, BinaryIO]
    ) -> CheckpointFile:
        """Compute the entry of a file, and keep it open in ``files``. Raises _ChangedError when it changes meanwhile."""
        file = self._open(path)
        if len(files) < MAX_OPEN_FILES:
            files[path] = stack.enter_context(file)
        with contextlib.nullcontext() if path in files else file:
            before = os.fstat(file.fileno())
            if before.st_size > max_bytes:
                raise _ChangedError(path)
            pieces = [
                hashlib.sha256(_read_piece(file, number)).hexdigest()
                for number in range(-(-before.st_size // PIECE_BYTES))
            ]
            after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise _ChangedError(path)
        return CheckpointFile(before.st_size, before.st_mtime_ns, tuple(pieces))

    def _open(self, path: str) -> BinaryIO:
        try:
            return open_beneath(self.folder, path)
        except (UnsafeFileError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise _ChangedError(path) from error

    def _send_missing(
        self, container: str, missing: set[str], entries: dict[str, CheckpointFile], files: dict[str, BinaryIO]
    ) -> None:
        for path, entry in entries.items():
            if missing.isdisjoint(entry.pieces):
                continue
            with contextlib.ExitStack() as stack:
                file = files[path] if path in files else stack.enter_context(self._open(path))
                for number, sha256 in enumerate(entry.pieces):
                    if sha256 in missing:
                        content = _read_piece(file, number)
                        if hashlib.sha256(content).hexdigest() != sha256:
                            raise _ChangedError(path)
                        self._portal.put_checkpoint(container, sha256, content)
                        missing.discard(sha256)

    # --- from the portal ---

    def fetch(
        self, container: str, is_alive: Callable[[str], bool], report_progress: Callable[[Message], None]
    ) -> None:
        """Replace the folder with the newest set of the job, if that is newer than the folder.

        The folder is not replaced while another container that is alive uses it. Raises PortalUnavailableError, also
        while another node still has to send; BusyError while another thread sends; OSError when the disk is full.
        """
        with self._section.enter():
            record = CheckpointRecord.read(self.home / "kept.json")
            others = [user for user in record.users if user != container and is_alive(user)]
            if not others:
                newest = self._newest(container)
                if newest.version > record.version and (newest.through_portal or not any(self.folder.iterdir())):
                    self._replace_folder(container, newest.files, report_progress)
                    record = CheckpointRecord(newest.version, newest.files)
            record.users = [*others, container]
            record.write(self.home / "kept.json")

    def _newest(self, container: str) -> NewestSet:
        try:
            answer = self._portal.checkpoints(container)
            files = {str(path): CheckpointFile.from_json(entry) for path, entry in answer["files"].items()}
            return NewestSet(int(answer["version"]), files, bool(answer["through_portal"]))
        except PortalRefusedError as refused:
            if refused.status == 404:  # a portal of an earlier version keeps none
                return NewestSet(0, {}, False)
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PortalUnavailableError(AnswerNotUnderstood("GET checkpoints")) from error

    def _replace_folder(
        self, container: str, files: dict[str, CheckpointFile], report_progress: Callable[[Message], None]
    ) -> None:
        """Fetch a set into a new folder, then replace the old one. The agent owns it until the runtime's ``create``."""
        fresh, old = self.home / "checkpoints.new", self.home / "checkpoints.old"
        for folder in (fresh, old):
            delete_tree(folder)
        fresh.mkdir()
        total, done = sum(entry.size for entry in files.values()) >> 20, 0
        for path, entry in sorted(files.items()):
            report_progress(CheckpointsArrived(done >> 20, total))
            self._make_file(container, fresh, path, entry)
            done += entry.size
        self.folder.rename(old)
        fresh.rename(self.folder)
        delete_tree(old)

    def _make_file(self, container: str, top: Path, path: str, entry: CheckpointFile) -> None:
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or INVALID_CHARACTERS.search(path):
            raise OSError(errno.EINVAL, "a checkpoint has an invalid name", path)
        place = top.joinpath(*parts)
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as file:
            for number, sha256 in enumerate(entry.pieces):
                file.write(self._read_local_piece(path, number, sha256) or self._fetch_piece(container, sha256))
            file.flush()
            os.fsync(file.fileno())
        place.chmod(0o644)
        os.utime(place, ns=(entry.modified_ns, entry.modified_ns))

    def _read_local_piece(self, path: str, number: int, sha256: str) -> bytes | None:
        """Return a piece from the old folder; None when it does not have it."""
        try:
            with open_beneath(self.folder, path) as file:
                content = _read_piece(file, number)
        except OSError:
            return None
        return content if hashlib.sha256(content).hexdigest() == sha256 else None

    def _fetch_piece(self, container: str, sha256: str) -> bytes:
        try:
            content = self._portal.fetch_checkpoint(container, sha256)
        except PortalRefusedError as refused:
            if refused.status != 404:
                raise
            raise CreateError(CheckpointIncomplete()) from refused
        if hashlib.sha256(content).hexdigest() != sha256:
            raise PortalUnavailableError(CheckpointDamaged())
        return content


def _is_unchanged(entry: CheckpointFile | None, seen: tuple[int, int]) -> bool:
    return entry is not None and (entry.size, entry.modified_ns) == seen


def _is_fresh(modified_ns: int) -> bool:
    return abs(time.time_ns() - modified_ns) < STABLE_SECONDS * 1e9


def _read_piece(file: BinaryIO, number: int) -> bytes:
    """Read one piece; it is shorter than ``PIECE_BYTES`` only at the end of the file."""
    parts: list[bytes] = []
    left, offset = PIECE_BYTES, number * PIECE_BYTES
    while left and (part := os.pread(file.fileno(), left, offset)):
        parts.append(part)
        left -= len(part)
        offset += len(part)
    return b"".join(parts)
