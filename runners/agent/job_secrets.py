"""Fetches the secrets of jobs and keeps their values where only the job reads them, from before its start until its end.

That is a folder in memory where the machine has one (``memory_folder``), so that no value is written to a disk; else one
beneath the container's folder. It is filled under another name and then renamed, so a folder of that name is complete; an
agent that was killed begins again. Values are in no message, record or log of the agent.
"""

import contextlib
import logging
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from runners.agent.journal import ContainerJournal, delete_tree
from runners.agent.portal_client import PortalUnavailableError
from runners.agent.refusals import refusal_as_create_error
from runners.host.node_files import NodeFiles
from runners.messages.portal import AnswerNotUnderstood
from runners.messages.secrets import SecretsNotFetched
from runners.runtimes.host_config import owner_for, short_hash
from runners.runtimes.owners import chown_tree
from runners.spec import SECRET_NAMES, RunSpec

logger = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - only a folder that is the agent's own is used there
MAX_SECRETS = 50
MAX_BYTES = 64 * 1024
FRESH = ".new"


class SecretPortal(Protocol):
    def secrets(self, container: str) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class JobSecret:
    name: str
    kind: str
    value: bytes = field(repr=False)

    @classmethod
    def from_json(cls, data: Any) -> "JobSecret":
        """Raise TypeError, KeyError or ValueError for what is no secret. A name is a single component of a path."""
        name, kind, value = data["name"], data["kind"], data["value"]
        if not SECRET_NAMES[kind].fullmatch(name) or not isinstance(value, str):
            raise ValueError("a secret has an invalid name or value")
        content = value.encode()
        if len(content) > MAX_BYTES or (kind == "variable" and b"\0" in content):
            raise ValueError("a secret has an invalid value")
        return cls(name, kind, content)


class JobSecrets:
    """The secrets of this node's containers. Those that an earlier agent left of ended containers are deleted first."""

    def __init__(self, files: NodeFiles, journal: ContainerJournal, portal: SecretPortal) -> None:
        self._files = files
        self._portal = portal
        self._delete_leftovers(journal)

    def place(self, spec: RunSpec) -> None:
        """Make a container's folder of secrets unless it is there, or the job has none.

        Raises PortalUnavailableError: try again; CreateError: the portal refuses; OSError when there is no space.
        """
        folder = self._files.folders(spec).secrets
        if folder is None or folder.is_dir():
            return
        with refusal_as_create_error(SecretsNotFetched):
            secrets = self._fetch(spec)
        fresh = folder.with_name(f"{folder.name}{FRESH}")
        if self._files.memory is not None:
            make_own_folder(self._files.memory)
        delete_tree(fresh)
        fresh.mkdir(mode=0o700)
        owner = owner_for(spec.job, os.geteuid(), os.getegid())
        for kind, part in (("file", "files"), ("variable", "variables")):
            (fresh / part).mkdir(mode=0o700)
            for secret in secrets:
                if secret.kind == kind:
                    _write(fresh / part / secret.name, secret.value)
            if os.geteuid() == 0:
                chown_tree(fresh / part, owner)
        fresh.rename(folder)

    def remove(self, name: str) -> None:
        """Delete the values of a container that has ended."""
        folder = self._files.secrets(name)
        for each in (folder, folder.with_name(f"{folder.name}{FRESH}")):
            if os.path.lexists(each):
                delete_tree(each)

    def _fetch(self, spec: RunSpec) -> list[JobSecret]:
        problem = PortalUnavailableError(AnswerNotUnderstood("GET secrets"))
        try:
            listed = self._portal.secrets(spec.name)["secrets"]
            secrets = [JobSecret.from_json(each) for each in listed[: MAX_SECRETS + 1]]
        except (KeyError, TypeError, ValueError):
            raise problem from None  # the error might quote a value
        found = [(secret.name, secret.kind) for secret in secrets]
        if len(secrets) > MAX_SECRETS or sorted(found) != sorted(set(spec.secrets)):
            raise problem
        return secrets

    def _delete_leftovers(self, journal: ContainerJournal) -> None:
        if self._files.memory is None or not is_own_folder(self._files.memory):
            return
        entries = journal.entries()
        for name in sorted(path.name for path in self._files.memory.iterdir()):
            entry = entries.get(name.removesuffix(FRESH))
            if entry is None or entry.exit is not None:
                self.remove(name)


def memory_folder(home: Path, shared_memory: Path = SHARED_MEMORY) -> Path | None:
    """Return the folder in memory of the agent with this home; None where there is no memory that it can write to.

    The folder need not exist. Everyone may make folders there, so one of another user is not used.
    """
    folder = shared_memory / f"schedulearn-{short_hash(str(home.resolve()), 12)}"
    usable = shared_memory.is_mount() and os.access(shared_memory, os.W_OK | os.X_OK)
    if usable and (is_own_folder(folder) or not os.path.lexists(folder)):
        return folder
    logger.warning("%s cannot be used, so the secrets of running jobs are kept on the disk, beneath %s.", folder, home)
    return None


def is_own_folder(folder: Path) -> bool:
    """Whether it is a folder that only this user can enter."""
    try:
        info = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and stat.S_IMODE(info.st_mode) & 0o077 == 0


def make_own_folder(folder: Path) -> None:
    """Make a folder that only this user can enter. Raises PermissionError when there is something else at its place."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not is_own_folder(folder):
        raise PermissionError(f"{folder} does not belong to the agent")


def _write(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
