"""The caches of projects: a folder for each, which its jobs on this node share and no others see.

Downloads, compiled kernels and fonts are kept there between jobs. On an agent that is root, each job has its own user id: the
folder belongs to a group of the project, which its jobs are in. ``<key>`` is the project's identity and a generation, which
grows when its caches are emptied.

The size is limited without ending jobs: when none of the project runs here, what was used least recently is deleted. A job that
fills the disk with it all the same is ended at twice the limit.
"""

import itertools
import logging
import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from runners.agent.journal import delete_tree
from runners.host.node_files import NodeFiles, disk_usage, open_folder
from runners.messages import Message
from runners.messages.containers import CacheOverLimit
from runners.runtimes.host_config import cache_group
from runners.spec import RunSpec

logger = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
UNUSED_SECONDS = 60 * 24 * 3600
TARGET = 0.9
"""The part of the limit that is left after a deletion, so that the next job does not lead to another one."""
ENDED_AT = 2
"""How many times the limit a running job may reach."""
MAX_ENTRIES = 500_000
MAX_DEPTH = 64
DELETED_AT_ONCE = 200
"""Files, before it is looked again whether a job has started."""
KEY = re.compile(r"([0-9a-f]{32})-([0-9]{1,9})")
GIB = 2**30


@dataclass(frozen=True, slots=True)
class CachedFile:
    used_at: float
    path: str
    disk_bytes: int


class Caches:
    """The caches on this node. ``in_use`` returns the keys of the containers that are expected here."""

    def __init__(self, files: NodeFiles, limit_gib: int, in_use: Callable[[], Collection[str]]) -> None:
        self._files = files
        self._limit = limit_gib * GIB
        self._in_use = in_use
        self._checked: dict[str, float] = {}
        """When a cache was last used at the time of its last check, by key."""

    def keys(self) -> list[str]:
        return sorted(path.name for path in self._files.caches.iterdir() if KEY.fullmatch(path.name))

    def check(self) -> None:
        """Shorten the caches that no job uses now and that have been used since the last check."""
        for key in self.keys():
            try:
                used_at = self._files.cache(key).parent.stat().st_mtime
            except FileNotFoundError:
                continue  # tidied meanwhile
            if self._is_in_use(key) or self._checked.get(key) == used_at:
                continue
            try:
                done = shorten(self._files.cache(key), self._limit, partial(self._is_in_use, key))
            except OSError as error:  # of one cache; the others are checked all the same
                logger.warning("The cache %s could not be checked: %s", key, error)
                done = True
            if done:
                self._checked[key] = used_at

    def _is_in_use(self, key: str) -> bool:
        return key in self._in_use()

    def excess(self, keys: Collection[str]) -> dict[str, Message]:
        """Return what to report to the owners of running jobs whose project has filled its cache far beyond the limit."""
        found: dict[str, Message] = {}
        if not self._limit:
            return found  # these jobs began before the agent was set to keep no caches
        for key in filter(None, keys):
            used = disk_usage(self._files.cache(key)).disk_bytes
            if used > ENDED_AT * self._limit:
                found[key] = CacheOverLimit(used // GIB, self._limit // GIB)
        return found

    def tidy(self) -> None:
        """Delete caches that were emptied, or that no job has used for long. Mark those in use."""
        used = self._in_use()
        newest: dict[str, int] = defaultdict(int)
        for project, generation in map(split_key, self.keys()):
            newest[project] = max(newest[project], generation)
        for key in self.keys():
            folder = self._files.cache(key).parent
            project, generation = split_key(key)
            if key in used:
                os.utime(folder)
            elif generation < newest[project] or time.time() - folder.stat().st_mtime > UNUSED_SECONDS:
                logger.info("The cache %s is deleted.", key)
                delete_tree(folder)
                self._checked.pop(key, None)


def split_key(key: str) -> tuple[str, int]:
    project, _, generation = key.partition("-")
    return project, int(generation)


def prepare(files: NodeFiles, spec: RunSpec) -> None:
    """Make the cache of a container's project, if it has one, and give all its jobs access. Raises OSError."""
    if not (folder := files.folders(spec).cache):
        return
    if not KEY.fullmatch(spec.cache):
        raise OSError(f"{spec.cache!r} is not the name of a cache")
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder.parent)
    if os.geteuid() == 0:
        share(folder, cache_group(spec.cache))
    else:
        folder.chmod(0o700)


# --- access ------------------------------------------------------------------------------------------------------


def share(folder: Path, group: int) -> None:
    """Give the group access to all that jobs of other users have left: some programs write files for themselves alone.

    Only the agent, which is root, does so. Links are not followed, and nothing of root is changed.
    """
    with open_folder(folder) as top:
        os.fchown(top, 0, group)
        os.fchmod(top, 0o2770)
        for _, handle, name, info in _walk(top):
            is_folder = stat.S_ISDIR(info.st_mode)
            if info.st_uid == 0 or not (is_folder or stat.S_ISREG(info.st_mode)):
                continue
            wanted = stat.S_IMODE(info.st_mode) & 0o777 | (0o2070 if is_folder else 0o060)
            if info.st_gid != group or stat.S_IMODE(info.st_mode) != wanted:
                _give(handle, name, group, wanted)


def _give(parent: int, name: str, group: int, mode: int) -> None:
    try:
        entry = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return  # gone meanwhile
    try:
        if stat.S_ISLNK(os.fstat(entry).st_mode):
            return
        os.chown(f"/proc/self/fd/{entry}", -1, group)
        Path(f"/proc/self/fd/{entry}").chmod(mode)
    except OSError as error:
        logger.warning("%s in a cache could not be shared: %s", name, error)
    finally:
        os.close(entry)


# --- size --------------------------------------------------------------------------------------------------------


def shorten(folder: Path, limit: int, is_needed: Callable[[], bool]) -> bool:
    """Delete the files that were used least recently while all take more than ``limit`` bytes.

    Returns False if a job has started meanwhile, and the rest has to wait.
    """
    with open_folder(folder) as top:
        found = [
            CachedFile(max(info.st_atime, info.st_mtime), path, max(info.st_blocks * 512, 4096))
            for path, _, _, info in _walk(top)
            if not stat.S_ISDIR(info.st_mode)
        ]
        used = sum(each.disk_bytes for each in found)
        if used <= limit and len(found) < MAX_ENTRIES:
            return True
        found.sort(key=lambda each: each.used_at, reverse=True)
        count = 0
        while found and (used > TARGET * limit or len(found) > TARGET * MAX_ENTRIES):
            if count % DELETED_AT_ONCE == 0 and is_needed():
                return False
            oldest = found.pop()
            _delete(top, oldest.path)
            used -= oldest.disk_bytes
            count += 1
        logger.info("%s files were deleted from the cache %s.", count, folder.parent.name)
        _drop_remains(top)
    return True


def _delete(top: int, path: str) -> None:
    parent, _, name = path.rpartition("/")
    try:
        with open_folder(top, parent) as folder:
            os.unlink(name, dir_fd=folder)
    except OSError as error:
        logger.debug("%s could not be deleted from a cache: %s", path, error)


def _drop_remains(top: int) -> None:
    """Remove folders that are empty now, and links within the cache to what is gone."""
    deepest_first = sorted(((path, info) for path, _, _, info in _walk(top)), key=lambda each: -each[0].count("/"))
    for path, info in deepest_first:
        parent, _, name = path.rpartition("/")
        try:
            with open_folder(top, parent) as folder:
                if stat.S_ISDIR(info.st_mode):
                    os.rmdir(name, dir_fd=folder)
                elif stat.S_ISLNK(info.st_mode) and not os.readlink(name, dir_fd=folder).startswith("/"):
                    os.stat(name, dir_fd=folder)
        except FileNotFoundError:
            _delete(top, path)
        except OSError:
            pass  # not empty, or gone


Found = tuple[str, int, str, os.stat_result]


def _walk(top: int) -> Iterable[Found]:
    """Yield path, open folder, name and status of at most ``MAX_ENTRIES`` entries beneath a folder."""
    return itertools.islice(_entries(top, "", 0), MAX_ENTRIES)


def _entries(handle: int, prefix: str, depth: int) -> Iterator[Found]:
    folders = []
    with os.scandir(handle) as entries:
        for entry in entries:
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # gone meanwhile
            yield prefix + entry.name, handle, entry.name, info
            if stat.S_ISDIR(info.st_mode) and depth < MAX_DEPTH:
                folders.append(entry.name)
    for name in folders:
        try:
            with open_folder(handle, name) as beneath:
                yield from _entries(beneath, f"{prefix}{name}/", depth + 1)
        except OSError:
            continue  # gone, closed to us, or a link by now
