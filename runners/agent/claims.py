"""Determine to which job a folder of this node belongs.

``jobs/`` and ``attempts/`` have a folder for each number of the portal's database, and a restored backup gives out numbers
again. So each folder has a file with the identity of the job that it was made for. A folder that was made for another job
is set aside: no container gets it, its files are not sent, and it is kept for an admin to look at.

Agents of earlier releases left no such file. The job gets such a folder if its ``kept.json`` names only containers that the
portal knows as this job's.
"""

import contextlib
import fcntl
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from runners.agent.checkpoints import CheckpointRecord
from runners.agent.journal import ContainerJournal
from runners.agent.portal_client import PortalRefusedError
from runners.host.exclusive import BusyError
from runners.host.node_files import NodeFiles, read_own_json, write_json
from runners.messages.problems import FoldersSetAside
from runners.spec import RunSpec, group_name

INPUTS = ("inputs", "inputs.new")
IDENTITY_FILE = "identity.json"
ASIDE_MARK = ".other-"
"""Part of the name of a folder that was set aside, followed by the first digits of its job's uid."""
NON_HEX_CHARACTERS = re.compile(r"[^0-9a-f]")
MAX_CLOCK_DIFFERENCE_SECONDS = 3600
"""How far the clocks of a node and the portal may differ when a folder's age is compared with a job's."""
LOCK_TIMEOUT_SECONDS = 10.0
"""How long to wait for the lock; it is held for milliseconds."""
LOCK_POLL_SECONDS = 0.02

OwnershipCheck = Callable[[], bool]


class IdentityPortal(Protocol):
    def identity(self, container: str) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of ``identity.json``."""

    installation: str
    job: str
    """The job's uid."""
    attempt: str = ""
    """The attempt: the common part of its containers' names. Empty for a folder that the job keeps."""

    @classmethod
    def read(cls, folder: Path) -> "Claim | None":
        """Read the claim of a folder; None without a valid one. Raises OSError when it cannot be read now."""
        try:
            claim = cls(**read_own_json(folder / IDENTITY_FILE))
        except (TypeError, RecursionError, IsADirectoryError, NotADirectoryError):
            return None
        return claim if all(isinstance(each, str) for each in astuple(claim)) else None

    def write(self, folder: Path) -> None:
        write_json(folder / IDENTITY_FILE, asdict(self))


class Claims:
    """The claims of this node's jobs on its folders. Safe to use from all threads, and from several nodes where they share ``jobs/``."""

    def __init__(self, files: NodeFiles, journal: ContainerJournal, portal: IdentityPortal) -> None:
        self._files = files
        self._journal = journal
        self._portal = portal
        self._lock = threading.Lock()
        """Protects the names of the folders that are set aside."""
        self._folders_aside: tuple[str, ...] = ()

    def claim(self, spec: RunSpec) -> None:
        """Make sure that the folders of the container's job and attempt are theirs; set aside those that are not.

        Raises PortalUnavailableError when the portal has to be asked and does not answer.
        """
        for folder, claim, is_owner in self._claimed_folders(spec):
            self._claim(folder, claim, is_owner)

    def mark_folders(self, spec: RunSpec) -> None:
        """Write the identity into the folders of a running container that an earlier release prepared."""
        for folder, claim, _ in self._claimed_folders(spec):
            if folder.is_dir() and Claim.read(folder) is None:
                with _folder_lock(folder.parent):
                    if Claim.read(folder) is None:
                        claim.write(folder)

    def owns_job_folder(self, spec: RunSpec) -> bool:
        """Whether the folder of the container's job belongs to that job."""
        return self._owns(spec, self._files.job(spec.job))

    def owns_attempt_folder(self, spec: RunSpec) -> bool:
        """Whether the folder of the container's attempt belongs to that attempt."""
        return self._owns(spec, self._files.attempt(spec.attempt))

    def keep_uncollected(self, name: str, attempt: int) -> None:
        """Set aside the outputs of an attempt whose last container here is forgotten before the portal collected it."""
        folder = self._files.attempt(attempt)
        others = (entry for other, entry in self._journal.entries().items() if other != name)
        if _has_files(folder) and all(entry.attempt != attempt for entry in others):
            with _folder_lock(folder.parent):
                claim = Claim.read(folder)
                if folder.is_dir() and (claim is None or claim.attempt == group_name(name)):
                    self._set_aside(folder, claim)

    def find_set_aside(self) -> None:
        """Find the folders that are set aside, for ``problems``."""
        found = [
            str(folder)
            for top in (self._files.jobs, self._files.attempts)
            for folder in top.iterdir()
            if ASIDE_MARK in folder.name and _has_files(folder)
        ]
        with self._lock:
            self._folders_aside = tuple(sorted(found))

    def problems(self) -> list[dict[str, Any]]:
        """Return the problems to report, for the page of the node."""
        with self._lock:
            aside = self._folders_aside
        return [FoldersSetAside.among(aside).to_json()] if aside else []

    def _claimed_folders(self, spec: RunSpec) -> list[tuple[Path, Claim, OwnershipCheck]]:
        if spec.identity is None:  # a portal of an earlier release sends none
            return []
        claim = Claim(spec.identity.installation, spec.identity.job)
        attempt = Claim(spec.identity.installation, spec.identity.job, spec.group)
        return [
            (self._files.attempt(spec.attempt), attempt, lambda: self._belongs_to_attempt(spec)),
            (self._files.job(spec.job), claim, lambda: self._belongs_to_job(spec)),
        ]

    def _owns(self, spec: RunSpec, folder: Path) -> bool:
        if spec.identity is None:
            return True
        found = Claim.read(folder)
        return found is None or found in [claim for at, claim, _ in self._claimed_folders(spec) if at == folder]

    def _claim(self, folder: Path, claim: Claim, is_owner: OwnershipCheck) -> None:
        found = Claim.read(folder)
        if found == claim:
            return
        # Asked before the lock is taken: it may take long.
        adopted = found is None and folder.is_dir() and (not _has_content(folder) or is_owner())
        with _folder_lock(folder.parent):
            found = Claim.read(folder)  # another node may have been faster
            if found == claim:
                return
            if os.path.lexists(folder) and (found is not None or not adopted):
                self._set_aside(folder, found)
            folder.mkdir(exist_ok=True)
            claim.write(folder)

    def _set_aside(self, folder: Path, claim: Claim | None) -> None:
        digits = NON_HEX_CHARACTERS.sub("", claim.job)[:8] if claim else ""
        name = f"{folder.name}{ASIDE_MARK}{digits or 'unknown'}"
        place = folder.with_name(name)
        for number in itertools.count(2):
            if not os.path.lexists(place):
                break
            place = folder.with_name(f"{name}-{number}")
        folder.rename(place)
        os.utime(place, follow_symlinks=False)  # it is kept from now on
        if _has_files(place):
            with self._lock:
                self._folders_aside = (*self._folders_aside, str(place))

    def _belongs_to_attempt(self, spec: RunSpec) -> bool:
        """Whether another container of the attempt was prepared in the folder."""
        others = self._journal.entries().items()
        return any(
            entry.attempt == spec.attempt and group_name(name) == spec.group
            for name, entry in others
            if name != spec.name
        )

    def _belongs_to_job(self, spec: RunSpec) -> bool:
        """Whether the portal knows all containers for which the folder was last prepared, and it is not older than the job."""
        folder = self._files.job(spec.job)
        users = set(CheckpointRecord.read(folder / "kept.json").users)
        try:
            answer = self._portal.identity(spec.name)
        except PortalRefusedError as refused:
            if refused.status == 401:
                raise
            return False
        names, submitted_at = answer.get("containers"), answer.get("submitted_at")
        if not isinstance(names, list) or not isinstance(submitted_at, int | float):
            return False
        return (
            bool(users)
            and users <= set(names)
            and folder.stat().st_mtime >= submitted_at - MAX_CLOCK_DIFFERENCE_SECONDS
        )


def _has_files(folder: Path) -> bool:
    """Whether a job has left anything in a folder. A folder that cannot be read counts; inputs, which the portal has, do not."""
    try:
        return any(any(each.iterdir()) for each in folder.iterdir() if each.is_dir() and each.name not in INPUTS)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _has_content(folder: Path) -> bool:
    """Whether a folder contains more than empty folders: files of a job, or files that an agent keeps about them."""
    try:
        return _has_files(folder) or any(not each.is_dir() for each in folder.iterdir())
    except OSError:
        return True


@contextlib.contextmanager
def _folder_lock(top: Path) -> Iterator[None]:
    """Admit one thread at a time, of all agents that have the folder ``top``; all where a network file system has no locks.

    Raises BusyError when another one holds the lock for long: its machine may be down.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            file = stack.enter_context((top.parent / ".claims").open("w"))
            _lock(file)
        yield


def _lock(file: IO[str]) -> None:
    until = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise BusyError("Another agent is preparing a folder of a job.") from None
            time.sleep(LOCK_POLL_SECONDS)
        else:
            return
