"""The datasets of jobs on this node: fetched before a container is created, with copies for those that it may write to."""

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runners.agent.dataset_cache import PROGRESS_SECONDS, SPARE_BYTES, DatasetCache, Report
from runners.agent.dataset_fetch import DatasetPortal, ManifestLine, lines_of, make_folder, make_folders
from runners.agent.journal import delete_tree
from runners.agent.reconcile import DesiredContainer
from runners.agent.refusals import refusal_as_create_error
from runners.host.node_files import NodeFiles
from runners.messages.datasets import CopyingDataset, DatasetNotFetched, NoSpaceForDataset
from runners.runtime import CreateError
from runners.spec import DatasetMount, RunSpec

FICLONE = 0x40049409
"""The request that lets a file share the blocks of another one until either changes, where the file system can do that."""
FRESH = ".new"


class JobDatasets:
    """The datasets of this node's containers. ``desired`` returns the containers that are expected here."""

    def __init__(
        self,
        files: NodeFiles,
        portal: DatasetPortal,
        limit_gib: int,
        desired: Callable[[], Mapping[str, DesiredContainer]],
    ) -> None:
        self._files = files
        self._desired = desired
        self.cache = DatasetCache(
            files.cached_datasets, portal, limit_gib, self._manifests, lambda: self._manifests(only_running=True)
        )

    def _manifests(self, *, only_running: bool = False) -> set[str]:
        expected = self._desired().values()
        return {
            mount.sha256
            for container in expected
            if container.wanted == "run" or not only_running
            for mount in container.spec.datasets
        }

    def place(self, spec: RunSpec, report: Report) -> None:
        """Fetch a container's datasets, and make its copies. Does nothing for what is here.

        Raises PortalUnavailableError or BusyError: try again; CreateError: the portal refuses, or there is no space.
        """
        for mount in spec.datasets if spec.role == "host" else ():
            with refusal_as_create_error(lambda error, mount=mount: DatasetNotFetched(mount.name, error)):  # type: ignore[misc]
                self.cache.fetch(spec.name, mount, report)
            if mount.writable:
                self._copy(mount, self._files.dataset_copy(spec.name, mount.name), report)

    def _copy(self, mount: DatasetMount, copy: Path, report: Report) -> None:
        if copy.is_dir():
            return
        free = shutil.disk_usage(self._files.home).free
        if free < mount.size + SPARE_BYTES and not self._shares_blocks(mount):
            raise CreateError(NoSpaceForDataset(mount.name, mount.size + SPARE_BYTES, free))
        fresh = copy.with_name(f"{copy.name}{FRESH}")
        delete_tree(fresh)
        copy.parent.mkdir(mode=0o711, exist_ok=True)
        make_folder(fresh)
        source, done, reported = self.cache.files(mount.sha256), 0, 0.0
        try:
            for line in lines_of(source.parent / "manifest"):
                if time.monotonic() - reported >= PROGRESS_SECONDS:
                    reported = time.monotonic()
                    report(CopyingDataset(mount.name, done, mount.size))
                make_folders(fresh, (fresh / line.path).parent)
                copy_file(source / line.path, fresh / line.path, executable=line.executable)
                done += line.size
        except OSError as error:
            delete_tree(fresh)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise CreateError(NoSpaceForDataset(mount.name, mount.size, free)) from error
        fresh.rename(copy)

    def _shares_blocks(self, mount: DatasetMount) -> bool:
        """Return whether a copy takes no space, tried with the first file that has content."""
        folder = self.cache.files(mount.sha256)
        line: ManifestLine | None = next((each for each in lines_of(folder.parent / "manifest") if each.size), None)
        probe = self._files.home / f".clone-{os.getpid()}"
        try:
            return line is None or clone(folder / line.path, probe)
        finally:
            probe.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Delete the copies of a container that has ended."""
        copies = self._files.dataset_copies(name)
        if os.path.lexists(copies):
            delete_tree(copies)

    def tidy(self) -> None:
        self.cache.tidy()

    def facts(self) -> dict[str, Any]:
        """Return what the portal hears: that this agent knows datasets, and which are here."""
        return {"job_datasets": True, "cached_datasets": self.cache.reported()}


def copy_file(source: Path, target: Path, *, executable: bool) -> None:
    """Copy a file that the job may change, without taking space where the file system can do that."""
    if not clone(source, target):
        shutil.copyfile(source, target)
    target.chmod(0o755 if executable else 0o644)


def clone(source: Path, target: Path) -> bool:
    """Let a new file share the blocks of another one; return whether the file system can do that."""
    with source.open("rb") as there, target.open("wb") as here, contextlib.suppress(OSError):
        fcntl.ioctl(here.fileno(), FICLONE, there.fileno())
        return True
    return False
