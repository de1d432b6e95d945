"""Code versions on this node: fetched once by hash, unpacked separately for each container.

The portal made the tar, but it contains what a user uploaded. So only regular files and folders are unpacked, under plain
names, beneath the workspace, with file modes that the agent chooses.
"""

import contextlib
import os
import re
import tarfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import BinaryIO, Protocol

from runners.host.exclusive import ExclusiveSection
from runners.host.node_files import MAX_DEPTH, open_folder
from runners.messages.containers import (
    CodeHasTooManyFiles,
    CodeNotUnpacked,
    InvalidName,
    NotARegularFile,
    UnreadableFile,
)
from runners.runtime import CreateError

SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_TAR_BYTES = 2 << 30
"""The largest tar in bytes; the portal accepts at most 1 GiB unpacked."""
MAX_ENTRIES = 20_000
CACHE_BYTES = 10 << 30
MAX_PART_AGE_SECONDS = 3600
PIECE_BYTES = 1 << 20
FETCH_WAIT_SECONDS = 30.0
"""How long one container waits while another fetches the same code; then it asks again."""


class CodePortal(Protocol):
    def fetch_code(self, sha256: str, into: BinaryIO, max_bytes: int) -> None: ...


class CodeStore:
    """Keeps ``code/<sha256>.tar``. Two containers with the same code fetch it once."""

    def __init__(self, folder: Path, portal: CodePortal, cache_bytes: int = CACHE_BYTES) -> None:
        self.folder = folder
        self._portal = portal
        self._cache_bytes = cache_bytes
        self._lock = threading.Lock()
        self._fetching: defaultdict[str, ExclusiveSection] = defaultdict(lambda: ExclusiveSection("fetching the code"))

    def fetch(self, sha256: str) -> Path:
        """Return the path of the tar, fetched if needed.

        Raises PortalUnavailableError or BusyError: try again; PortalRefusedError or CreateError: it is not available.
        """
        if not SHA256.fullmatch(sha256):
            raise CreateError(f"{sha256!r} is not the hash of a code version.")
        path = self.folder / f"{sha256}.tar"
        with self._lock:
            section = self._fetching[sha256]
        with section.enter(FETCH_WAIT_SECONDS):
            if path.exists():
                os.utime(path)  # used just now
                return path
            part = self.folder / f".{sha256}.part"
            try:
                with part.open("wb") as file:
                    self._portal.fetch_code(sha256, file, MAX_TAR_BYTES)
                    file.flush()
                    os.fsync(file.fileno())
                part.rename(path)
            finally:
                part.unlink(missing_ok=True)
        self.tidy(keep=path)
        return path

    def tidy(self, keep: Path | None = None) -> None:
        """Delete the least recently used tars beyond the size of the cache, and fetches that a crash cut short."""
        for part in self.folder.glob(".*.part"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - part.stat().st_mtime > MAX_PART_AGE_SECONDS:
                    part.unlink()
        found = []
        for path in self.folder.glob("*.tar"):
            with contextlib.suppress(FileNotFoundError):
                info = path.stat()
                found.append((info.st_mtime, info.st_size, path))
        size = sum(entry[1] for entry in found)
        for _, bytes_, path in sorted(found):
            if size <= self._cache_bytes:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                size -= bytes_


def unpack(tar: Path, workspace: Path) -> None:
    """Unpack a tar into an empty folder of the agent. Raises CreateError when the tar has an invalid entry."""
    try:
        with open_folder(workspace) as top, tarfile.open(tar, mode="r:") as archive:
            for number, member in enumerate(archive):
                if number >= MAX_ENTRIES:
                    raise CreateError(CodeHasTooManyFiles(MAX_ENTRIES))
                _unpack_member(archive, member, top)
    except tarfile.TarError as error:
        raise CreateError(CodeNotUnpacked(str(error))) from error
    except OSError as error:
        raise CreateError(CodeNotUnpacked(str(error.strerror))) from error


def _unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, top: int) -> None:
    name = member.name.removesuffix("/")
    parts = name.removeprefix("./").split("/")
    if name in (".", ""):
        return
    if any(part in ("", ".", "..") or "\0" in part for part in parts) or len(parts) > MAX_DEPTH:
        raise CreateError(InvalidName(name[:200]))
    if member.isdir():
        _make_folders(top, parts)
        return
    if not member.isreg() or member.issparse():
        raise CreateError(NotARegularFile(name[:200]))
    _make_folders(top, parts[:-1])
    source = archive.extractfile(member)
    if source is None:
        raise CreateError(UnreadableFile(name[:200]))
    with open_folder(top, "/".join(parts[:-1])) as parent:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(parts[-1], flags, 0o644, dir_fd=parent)
        with os.fdopen(handle, "wb") as target:
            os.fchmod(handle, 0o755 if member.mode & 0o100 else 0o644)
            while piece := source.read(PIECE_BYTES):
                target.write(piece)


def _make_folders(top: int, parts: list[str]) -> None:
    for depth in range(len(parts)):
        with open_folder(top, "/".join(parts[:depth])) as parent, contextlib.suppress(FileExistsError):
            os.mkdir(parts[depth], 0o755, dir_fd=parent)
