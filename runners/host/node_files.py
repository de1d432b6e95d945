"""The folders of a node, and safe ways to open what users' code may have written there.

Layout: docs/architecture/node-files.md. Users' code can write to ``scribe/``, ``outputs/``, ``checkpoints/`` and
``workspace/``. Everything there is read through ``open_beneath`` and its relatives: they walk from a folder that is ours,
one name at a time, follow no link, and open only regular files, so they never wait for a FIFO.
"""

import contextlib
import errno
import json
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from runners.runtime import DatasetFolder, Folders
from runners.spec import RunSpec

MAX_DEPTH = 64
MAX_ENTRIES = 200_000
"""The most entries of one walk: more than an honest job has, and still a walk of seconds."""
MAX_LINKS = 1000
"""The most links of which a walk keeps the paths."""
MAX_JSON_BYTES = 64 * 1024
STATE_FILE = "state.json"
"""The agent's own record of a container, in its folder."""


class UnsafeFileError(OSError):
    """The path is not a regular file beneath its folder."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "not a regular file beneath its folder", path)


PRIVATE_SUFFIX = ".tmp"
"""Of the folder of a process for HOME and temporary files."""


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """The folders beneath ``AGENT_HOME``."""

    home: Path
    datasets: Path | None = None
    """Shown read-only to every container as /data."""
    shared: Path | None = None
    """A folder that other nodes share: checkpoints are kept there instead of beneath ``home``."""
    memory: Path | None = None
    """A folder in memory for the secrets of jobs; None: they are kept beneath ``home``."""

    @property
    def identity(self) -> Path:
        return self.home / "node.json"

    @property
    def code(self) -> Path:
        return self.home / "code"

    @property
    def containers(self) -> Path:
        return self.home / "containers"

    @property
    def attempts(self) -> Path:
        return self.home / "attempts"

    @property
    def jobs(self) -> Path:
        return (self.shared or self.home) / "jobs"

    @property
    def caches(self) -> Path:
        return self.home / "caches"

    @property
    def cached_datasets(self) -> Path:
        """The datasets of jobs, by the SHA-256 of their manifests."""
        return self.home / "datasets"

    def cache(self, key: str) -> Path:
        """The folder that jobs see. What is above it is the agent's own, and its time is that of the last use."""
        return self.caches / safe_name(key) / "files"

    def container(self, name: str) -> Path:
        return self.containers / safe_name(name)

    def control(self, name: str) -> Path:
        return self.container(name) / "control"

    def scribe(self, name: str) -> Path:
        return self.container(name) / "scribe"

    def workspace(self, name: str) -> Path:
        return self.container(name) / "workspace"

    def network(self, name: str) -> Path:
        """The folder of the socket through which a container reaches hosts."""
        return self.container(name) / "network"

    def network_use(self, name: str) -> Path:
        """The file with the hosts that a container has contacted."""
        return self.container(name) / "network.json"

    def state(self, name: str) -> Path:
        """The file of a container's journal entry, which the agent keeps across its restarts."""
        return self.container(name) / STATE_FILE

    def prepared(self, name: str) -> Path:
        """A file whose time is that at which a container was prepared: later files in its workspace are the job's."""
        return self.container(name) / "prepared.json"

    @property
    def processes(self) -> Path:
        """The state of the process runtime."""
        return self.home / "processes"

    def private(self, name: str) -> Path:
        """The folder for HOME and temporary files of a process; there is none for other runtimes."""
        return self.processes / f"{safe_name(name)}{PRIVATE_SUFFIX}"

    def attempt(self, attempt: int) -> Path:
        return self.attempts / str(int(attempt))

    def outputs(self, attempt: int) -> Path:
        return self.attempt(attempt) / "outputs"

    def inputs(self, attempt: int) -> Path:
        """The outputs of an earlier job, which the agent fetches once for all containers of an attempt."""
        return self.attempt(attempt) / "inputs"

    def secrets(self, name: str) -> Path:
        """The folder with the values of a container's secrets, from before its start until its end."""
        return self.memory / safe_name(name) if self.memory else self.container(name) / "secrets"

    def dataset_copies(self, name: str) -> Path:
        """The copies of datasets that a container may write to."""
        return self.container(name) / "copies"

    def dataset_copy(self, name: str, dataset: str) -> Path:
        return self.dataset_copies(name) / safe_name(dataset)

    def _datasets_of(self, spec: RunSpec) -> tuple[DatasetFolder, ...]:
        return tuple(
            DatasetFolder(
                mount.name,
                self.cached_datasets / mount.sha256 / "files",
                mount.path,
                self.dataset_copy(spec.name, mount.name) if mount.writable else None,
            )
            for mount in spec.datasets
            if spec.role == "host"
        )

    def job(self, job: int) -> Path:
        return self.jobs / str(int(job))

    def checkpoints(self, job: int) -> Path:
        return self.job(job) / "checkpoints"

    def folders(self, spec: RunSpec) -> Folders:
        datasets = self._datasets_of(spec)
        return Folders(
            workspace=self.workspace(spec.name),
            control=self.control(spec.name),
            scribe=self.scribe(spec.name),
            outputs=self.outputs(spec.attempt),
            checkpoints=self.checkpoints(spec.job),
            data=self.container(spec.name) / spec.data_name if datasets else self.datasets,
            cache=self.cache(spec.cache) if spec.cache and spec.role == "host" else None,
            network=self.network(spec.name) if spec.allowed_hosts else None,
            inputs=self.inputs(spec.attempt) if spec.inputs and spec.role == "host" else None,
            secrets=self.secrets(spec.name) if spec.secrets and spec.role == "host" else None,
            datasets=datasets,
            lab_data=self.datasets if datasets else None,
        )

    def make(self) -> None:
        """Make the top folders. Only the agent's user may enter the home, because it contains the node's token."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.code, self.containers, self.attempts, self.jobs, self.caches, self.cached_datasets):
            folder.mkdir(mode=0o711, exist_ok=True)

    def make_container(self, spec: RunSpec) -> Folders:
        """Make the folders of one container. The agent owns all of them until the runtime's ``create`` grants access."""
        folders = self.folders(spec)
        made = folders.workspace, folders.control, folders.scribe, folders.outputs, folders.checkpoints, folders.network
        for folder in filter(None, made):
            folder.mkdir(parents=True, exist_ok=True)
        return folders


def safe_name(name: str) -> str:
    """Return the name of a container if it is a single path component; raises ValueError otherwise."""
    if not name or name in (".", "..") or "/" in name or "\0" in name or len(name) > 200:
        raise ValueError(f"{name!r} cannot be the name of a container.")
    return name


def write_atomic(path: Path, content: bytes, mode: int = 0o644, *, sync: bool = True) -> None:
    """Write a file beside ``path`` and rename it, so that a reader sees the complete old or new file."""
    beside = path.with_name(f".{path.name}.{threading.get_native_id()}.new")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        beside.rename(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_json(path: Path, data: Any, mode: int = 0o644) -> None:
    write_atomic(path, json.dumps(data, sort_keys=True).encode(), mode)


def read_own_json(path: Path) -> Any:
    """Read a JSON file that only the agent writes; None when it is missing, or a crash of the machine cut it short."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


@contextlib.contextmanager
def open_folder(folder: Path | int, relative: str = "") -> Iterator[int]:
    """Open ``folder`` or a folder beneath it without following a link; yield the descriptor."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(folder, flags) if isinstance(folder, Path) else os.dup(folder)
    try:
        for part in _parts(relative) if relative else ():
            beneath = os.open(part, flags, dir_fd=handle)
            os.close(handle)
            handle = beneath
        yield handle
    finally:
        os.close(handle)


def open_beneath(folder: Path | int, relative: str) -> BinaryIO:
    """Open the regular file at ``relative`` beneath ``folder`` for reading.

    Raises UnsafeFileError for anything else at that path, and other OSErrors as ``open`` does. A hard link to a file of
    another owner counts as unsafe: it could be any file of the machine.
    """
    *parents, last = _parts(relative)
    with open_folder(folder) as top, open_folder(top, "/".join(parents)) as parent:
        try:
            handle = os.open(
                last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=parent
            )
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
                raise UnsafeFileError(relative) from error
            raise
        file = os.fdopen(handle, "rb", buffering=0)
        info = os.fstat(handle)
        foreign = info.st_nlink > 1 and info.st_uid != os.fstat(top).st_uid
        if not stat.S_ISREG(info.st_mode) or foreign:
            file.close()
            raise UnsafeFileError(relative)
        return file


def read_beneath(folder: Path | int, relative: str, limit: int = MAX_JSON_BYTES) -> bytes | None:
    """Read up to ``limit`` bytes of a small file; None when it is missing or not safe to open."""
    try:
        with open_beneath(folder, relative) as file:
            return file.read(limit)
    except OSError:
        return None


def read_json_beneath(folder: Path | int, relative: str) -> dict[str, Any]:
    """Return the object in a JSON file that users' code may have written; empty when it is anything else."""
    content = read_beneath(folder, relative)
    try:
        data = json.loads(content) if content else None
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A regular file beneath a folder."""

    path: str
    """Relative to the folder, with slashes."""
    size: int
    modified_ns: int
    disk_bytes: int
    changed_ns: int = 0
    """When its content or its place last changed, which a program cannot set."""


@dataclass(slots=True)
class FolderWalk:
    """One bounded walk through everything beneath a folder.

    After it, ``complete`` is True if everything was seen, and ``disk_bytes`` is the space that it takes on the disk, at
    least 4,096 bytes for each name, so that a million empty files are counted. ``links`` has the first symbolic links.
    """

    folder: Path
    max_entries: int = MAX_ENTRIES
    entries: int = 0
    disk_bytes: int = 0
    complete: bool = True
    links: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[FoundFile]:
        try:
            with open_folder(self.folder) as top:
                yield from self._scan(top, "", 0)
        except FileNotFoundError:
            return
        except OSError:
            self.complete = False

    def _scan(self, handle: int, prefix: str, depth: int) -> Iterator[FoundFile]:
        folders = []
        with os.scandir(handle) as entries:
            for entry in entries:
                self.entries += 1
                if self.entries > self.max_entries:
                    self.complete = False
                    return
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # gone meanwhile
                except OSError:
                    self.complete = False
                    continue
                self.disk_bytes += max(info.st_blocks * 512, 4096)
                if stat.S_ISDIR(info.st_mode):
                    folders.append(entry.name)
                elif stat.S_ISREG(info.st_mode):
                    disk_bytes = info.st_blocks * 512
                    path = prefix + entry.name
                    yield FoundFile(path, info.st_size, info.st_mtime_ns, disk_bytes, info.st_ctime_ns)
                elif stat.S_ISLNK(info.st_mode) and len(self.links) < MAX_LINKS:
                    self.links.append(prefix + entry.name)
        if folders and depth >= MAX_DEPTH:
            self.complete = False
            return
        for name in folders:
            try:
                with open_folder(handle, name) as beneath:
                    yield from self._scan(beneath, f"{prefix}{name}/", depth + 1)
            except PermissionError:
                self.complete = False  # the job has closed it to us: we run as its user, not as root
            except OSError:
                pass  # it is gone meanwhile, or a link by now


def read_link_beneath(folder: Path | int, relative: str) -> str:
    """Return the target of the symbolic link at ``relative`` beneath ``folder``; raises OSError for anything else there."""
    *parents, last = _parts(relative)
    with open_folder(folder) as top, open_folder(top, "/".join(parents)) as parent:
        return os.readlink(last, dir_fd=parent)


def disk_usage(folder: Path) -> FolderWalk:
    """Walk through a folder; the result is in ``disk_bytes`` and ``complete``."""
    walk = FolderWalk(folder)
    for _ in walk:
        pass
    return walk


def _parts(relative: str) -> list[str]:
    parts = relative.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise UnsafeFileError(relative)
    return parts
