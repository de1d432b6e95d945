"""Replaces the keys that encrypt columns of the database, while the portal runs.

1. A new key is put in front of those in the key's file: from then on it seals, and the old ones still unseal.
2. Each encrypted value is encrypted again with the new key.
3. After a pause, values that a process encrypted with an old key meanwhile are encrypted again, too.
4. The old keys are taken out of the file.

A rotation that ended early is continued by the next one: a file with several keys gets no further one.
"""

import fcntl
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.fernet import InvalidToken
from django.conf import settings
from django.db import models, transaction

from portal import sealing
from portal.environments import credentials
from portal.environments.models import Registry
from portal.notifications.models import Channel, Notice
from portal.projects.git import keys as git_keys
from portal.projects.models import GitSource
from portal.secrets import keys as secret_keys
from portal.secrets.models import Secret

BATCH = 100
"""Rows that one short transaction changes."""
MAX_PASSES = 10
PART = ".part"
"""How the name of a file ends that is to replace a file of keys."""
PAUSE_SECONDS = 30.0
"""Longer than a request takes that read the file before the new key was in it."""


class RotationError(Exception):
    """Keys cannot be rotated now. The message names what to do."""


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """A column with encrypted values, and the file with its keys."""

    model: "type[models.Model]"
    column: str
    key_file: str

    @property
    def name(self) -> str:
        return f"{self.model._meta.label_lower}.{self.column}"

    @property
    def rows(self) -> "models.QuerySet[models.Model]":
        """The rows that have a value."""
        return self.model._default_manager.exclude(**{self.column: ""})


SEALED_COLUMNS = (
    SealedColumn(Registry, "sealed_token", credentials.KEY_FILE),
    SealedColumn(Channel, "sealed_config", credentials.KEY_FILE),
    SealedColumn(Notice, "sealed_mail", credentials.KEY_FILE),
    SealedColumn(GitSource, "sealed_token", git_keys.KEY_FILE),
    SealedColumn(GitSource, "sealed_key", git_keys.KEY_FILE),
    SealedColumn(GitSource, "sealed_secret", git_keys.KEY_FILE),
    SealedColumn(Secret, "sealed", secret_keys.KEY_FILE),
)


@dataclass
class Rotation:
    """What became of the values of one key file."""

    key_file: str
    resealed: int = 0
    unreadable: list[str] = field(default_factory=list)
    """The columns and numbers of rows whose key is lost. They stay as they are."""
    was_continued: bool = False
    is_missing: bool = False
    """There is no such file, so there is nothing to rotate."""


def rotate_all(pause: Callable[[], None] = lambda: time.sleep(PAUSE_SECONDS)) -> list[Rotation]:
    """Replace the keys of all files and return what was done. ``pause`` waits for requests that run. Raises RotationError."""
    files = sorted({column.key_file for column in SEALED_COLUMNS})
    with _alone():
        rotations = [_begin(name) for name in files]
        for rotation in rotations:
            _reseal_all(rotation)
        pause()
        for rotation in rotations:
            _finish(rotation)
    return rotations


def _begin(key_file: str) -> Rotation:
    """Put a new key in front of the old one, unless an earlier rotation has."""
    path = settings.HOME / key_file
    for left in path.parent.glob(f"{key_file}.*{PART}"):  # by a rotation that was killed
        left.unlink(missing_ok=True)
    if not path.exists():
        return Rotation(key_file, is_missing=True)
    keys = sealing.keys_in(path)
    if len(keys) < 2:
        write_keys(path, [secrets.token_urlsafe(50), *keys])
    return Rotation(key_file, was_continued=len(keys) > 1)


def _finish(rotation: Rotation) -> None:
    """Encrypt what came in meanwhile, until a pass finds nothing, and drop the old keys. Raises RotationError."""
    if rotation.is_missing:
        return
    for _ in range(MAX_PASSES):
        if not _reseal_all(rotation):
            path = settings.HOME / rotation.key_file
            write_keys(path, sealing.keys_in(path)[:1])
            return
    raise RotationError(
        f"Values are still being encrypted with an old key of {rotation.key_file}, which is kept. Restart the processes of the "
        "portal, and run this again."
    )


def _reseal_all(rotation: Rotation) -> int:
    """Encrypt the values of a file's columns with its first key; return how many had another one."""
    rotation.unreadable.clear()
    columns = [column for column in SEALED_COLUMNS if column.key_file == rotation.key_file]
    keys = [] if rotation.is_missing else sealing.keys_in(settings.HOME / rotation.key_file)
    changed = sum(_reseal(column, keys, rotation.unreadable) for column in columns)
    rotation.resealed += changed
    return changed


def _reseal(column: SealedColumn, keys: Sequence[str], unreadable: list[str]) -> int:
    last, changed = 0, 0
    while batch := list(column.rows.filter(pk__gt=last).order_by("pk").values_list("pk", column.column)[:BATCH]):
        with transaction.atomic():
            for pk, sealed in batch:
                resealed = _resealed(sealed, keys)
                if resealed is None:
                    unreadable.append(f"{column.name} {pk}")
                elif resealed != sealed:
                    # a value that was replaced meanwhile stays; the next pass finds it
                    changed += column.rows.filter(pk=pk, **{column.column: sealed}).update(**{column.column: resealed})
        last = batch[-1][0]
    return changed


def _resealed(sealed: str, keys: Sequence[str]) -> str | None:
    """Return a value encrypted with the first key: as it is if it was already; None if none of the keys opens it."""
    if not keys:
        return None
    try:
        sealing.cipher_of((keys[0],)).decrypt(sealed.encode())
        return sealed
    except InvalidToken:
        pass
    try:
        return sealing.cipher_of(tuple(keys)).rotate(sealed.encode()).decode()
    except InvalidToken:
        return None


def write_keys(path: Path, keys: Sequence[str]) -> None:
    """Replace a file of keys in one step, readable by its owner alone; whoever owned the file still does."""
    before = path.stat()
    prefix, suffix = f"{path.name}.", PART  # backups leave out all that begins with secrets_key
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=prefix, suffix=suffix, delete=False) as file:
        try:
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                os.chown(file.name, before.st_uid, before.st_gid)
            file.write("".join(f"{key}\n" for key in keys))
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _alone() -> Iterator[None]:
    """Let one rotation run at a time: another one could drop the key that this one has just made."""
    with (settings.HOME / "rotate-keys.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RotationError("Keys are being rotated already. Wait until that is finished.") from None
        yield
