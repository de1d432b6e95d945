"""The datasets on this node: a read-only tree of files for each manifest, fetched once for all jobs, within a limit.

    datasets/<SHA-256 of the manifest>/          complete when it has this name; its time is that of the last use
        manifest, about.json                     the list of files; name, bytes and number of files
        files/                                   what jobs see: 0444, or 0555 for executable files
    datasets/<SHA-256>.part/                     one that arrives, or did when an agent was killed: it is continued
        incoming/<line>                          a file that arrives

What is used least recently is deleted when another one needs the space, but nothing that a container uses.
"""

import contextlib
import errno
import logging
import os
import shutil
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from runners.agent.dataset_fetch import DatasetFetch, DatasetPortal, FetchStoppedError
from runners.agent.journal import delete_tree
from runners.host.exclusive import BusyError, ExclusiveSection
from runners.host.node_files import read_own_json, write_json
from runners.messages import Message
from runners.messages.datasets import DatasetsInUse, DatasetTooLarge, FetchingDataset, NoSpaceForDataset
from runners.runtime import CreateError
from runners.spec import SHA256, DatasetMount

logger = logging.getLogger(__name__)

PART, DELETED = ".part", ".deleted"
FETCH_WAIT_SECONDS = 30.0
"""How long one container waits while another fetches the same dataset; then it asks again."""
PROGRESS_SECONDS = 0.5
ROOM_WAIT_SECONDS = 30.0
SPARE_BYTES = 512 << 20
"""Of the disk, which stay free: a full one stops the agent's own records."""
FILE_BYTES = 4096
"""The space that a file takes at least: a million empty files are counted."""
MAX_REPORTED = 100
"""Datasets that the portal hears of: those that were used last."""
GIB = 1 << 30
DEFAULT_LIMIT_GIB = 200
"""As much as the largest dataset that a portal accepts by default."""

Report = Callable[[Message], None]


@dataclass(frozen=True, slots=True)
class CachedDataset:
    """A complete tree, or one that arrives."""

    sha256: str
    folder: Path
    size: int
    """Bytes that it takes on the disk, at most: files that it shares with another version count twice."""
    used_at: float


class DatasetCache:
    """The datasets of a node. Safe to use from all threads.

    ``in_use`` returns the manifests of all containers that are expected here; ``wanted`` those of which a container is still
    to run, for which alone a fetch goes on.
    """

    def __init__(
        self,
        folder: Path,
        portal: DatasetPortal,
        limit_gib: int,
        in_use: Callable[[], Collection[str]],
        wanted: Callable[[], Collection[str]],
    ) -> None:
        self.folder = folder
        self._portal = portal
        self._limit = limit_gib * GIB
        self._in_use, self._wanted = in_use, wanted
        self._lock = threading.Lock()
        """Protects the two dictionaries."""
        self._sections: defaultdict[str, ExclusiveSection] = defaultdict(
            lambda: ExclusiveSection("fetching the dataset")
        )
        self._progress: dict[str, Message] = {}
        self._room = ExclusiveSection("making room for a dataset")

    def files(self, sha256: str) -> Path:
        """Return the folder that jobs see of a dataset, whether it is here or not."""
        return self.folder / sha256 / "files"

    def fetch(self, container: str, mount: DatasetMount, report: Report) -> Path:
        """Return the folder of a dataset, fetched if needed.

        Raises PortalUnavailableError or BusyError: try again; PortalRefusedError or CreateError: it is not available.
        """
        with self._lock:
            section = self._sections[mount.sha256]
        with self._entered(section, mount.sha256, report):
            folder = self.folder / mount.sha256
            if folder.is_dir():
                os.utime(folder)
                return folder / "files"
            self._make_room(mount)
            try:
                self._fetch(container, mount, report)
            except FetchStoppedError as error:
                raise BusyError(FetchingDataset(mount.name, error.done, mount.size)) from error
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                delete_tree(self._part(mount.sha256))
                raise CreateError(NoSpaceForDataset(mount.name, mount.size, self._free())) from error
            finally:
                with self._lock:
                    self._progress.pop(mount.sha256, None)
            return folder / "files"

    @contextlib.contextmanager
    def _entered(self, section: ExclusiveSection, sha256: str, report: Report) -> Iterator[None]:
        """Enter a section. While another container fetches the dataset, report its progress. Raises BusyError."""
        until = time.monotonic() + FETCH_WAIT_SECONDS
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(section.enter(PROGRESS_SECONDS))
                    break
                except BusyError:
                    with self._lock:
                        progress = self._progress.get(sha256)
                    if progress is not None:
                        report(progress)
                    if time.monotonic() > until:
                        raise
            yield

    def _fetch(self, container: str, mount: DatasetMount, report: Report) -> None:
        part = self._part(mount.sha256)
        part.mkdir(mode=0o711, exist_ok=True)
        reported = 0.0

        def progress(done: int) -> None:
            nonlocal reported
            now = time.monotonic()
            if now - reported >= PROGRESS_SECONDS or done == mount.size:
                reported = now
                message = FetchingDataset(mount.name, min(done, mount.size), mount.size)
                with self._lock:
                    self._progress[mount.sha256] = message
                report(message)

        fetch = DatasetFetch(
            self._portal, container, mount.sha256, part, progress, lambda: mount.sha256 in self._wanted()
        )
        others = sorted(self.complete(), key=lambda each: -each.used_at)
        files = fetch.run(mount.manifest_bytes, [each.folder for each in others])
        write_json(part / "about.json", {"name": mount.name, "size": mount.size, "files": files})
        os.sync()  # the files of a complete tree survive a loss of power
        part.rename(self.folder / mount.sha256)
        os.utime(self.folder / mount.sha256)
        logger.info("The dataset %s (%s) is here.", mount.name, mount.sha256[:12])

    def _part(self, sha256: str) -> Path:
        return self.folder / f"{sha256}{PART}"

    def _free(self) -> int:
        return shutil.disk_usage(self.folder).free

    # --- space -------------------------------------------------------------------------------------------------------

    def complete(self) -> list[CachedDataset]:
        """Return the datasets that are complete."""
        found = []
        for folder in self.folder.iterdir() if self.folder.is_dir() else ():
            if SHA256.fullmatch(folder.name):
                with contextlib.suppress(OSError):
                    about = read_own_json(folder / "about.json") or {}
                    size = int(about.get("size", 0)) + FILE_BYTES * int(about.get("files", 0))
                    found.append(CachedDataset(folder.name, folder, size, folder.stat().st_mtime))
        return found

    def _make_room(self, mount: DatasetMount) -> None:
        """Delete unused datasets until there is room for another one. Raises CreateError or BusyError when there is none."""
        if mount.size > self._limit:
            raise CreateError(DatasetTooLarge(mount.name, mount.size, self._limit))
        with self._room.enter(ROOM_WAIT_SECONDS):
            found = sorted(self.complete(), key=lambda each: each.used_at)
            arriving = self._arriving_bytes(mount.sha256)
            used = sum(each.size for each in found) + arriving
            part, needed = self._part(mount.sha256), mount.size + SPARE_BYTES
            is_continued = part.is_dir()
            for each in found:
                if used + mount.size <= self._limit and (is_continued or self._free() >= needed):
                    break
                if self._delete(each):
                    used -= each.size
            if used + mount.size > self._limit:
                raise BusyError(DatasetsInUse(mount.name, self._limit))
            if not is_continued and (free := self._free()) < needed:
                raise CreateError(NoSpaceForDataset(mount.name, needed, free))
            part.mkdir(mode=0o711, exist_ok=True)
            write_json(part / "arriving.json", {"size": mount.size})

    def _arriving_bytes(self, but: str) -> int:
        """Return the bytes of the datasets that arrive now, as a whole."""
        parts = (path for path in self.folder.glob(f"*{PART}") if path.name != f"{but}{PART}")
        return sum(int((read_own_json(path / "arriving.json") or {}).get("size", 0)) for path in parts)

    def _delete(self, found: CachedDataset) -> bool:
        """Delete a dataset unless a container uses it; return whether it is gone."""
        with self._lock:
            section = self._sections[found.sha256]
        try:
            with section.enter():
                if found.sha256 in self._in_use():  # asked here: whoever found it complete is counted by now
                    return False
                gone = found.folder.with_name(f"{found.sha256}.{uuid.uuid4().hex}{DELETED}")
                found.folder.rename(gone)
        except (BusyError, FileNotFoundError):
            return False
        logger.info("The dataset %s is deleted.", found.sha256[:12])
        delete_tree(gone)
        return True

    def tidy(self) -> None:
        """Delete what an earlier agent left, and complete datasets beyond the limit, the least recently used first."""
        in_use = self._in_use()
        for folder in self.folder.iterdir():
            sha256, _, _ = folder.name.partition(".")
            if folder.name.endswith(DELETED) or (folder.name.endswith(PART) and sha256 not in in_use):
                self._delete_rest(sha256, folder)
        for sha256 in in_use:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.folder / sha256)
        found = sorted(self.complete(), key=lambda each: each.used_at)
        used = sum(each.size for each in found)
        for each in found:
            if used <= self._limit:
                return
            if self._delete(each):
                used -= each.size

    def _delete_rest(self, sha256: str, folder: Path) -> None:
        with self._lock:
            section = self._sections[sha256]
        with contextlib.suppress(BusyError), section.enter():
            delete_tree(folder)

    def reported(self) -> list[str]:
        """Return the manifests of the complete datasets, the last used first, as far as the portal hears of them."""
        newest = sorted(self.complete(), key=lambda each: (-each.used_at, each.sha256))
        return sorted(each.sha256 for each in newest[:MAX_REPORTED])
