"""What a person typed, and the file that they chose, as the packages of a new environment."""

import hashlib
import io
import json
import logging
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from portal import sandbox
from portal.projects.package_lists.collecting import MAX_BYTES, TOO_LARGE
from portal.projects.package_lists.finding import kind_of
from portal.projects.package_lists.model import Note, PackageList, RefusedLine, from_json
from portal.projects.package_lists.typed import read_typed

FILE_NAMES = "requirements.txt, pyproject.toml or environment.yml"
LIMITS = sandbox.Limits(15, 512 * 1024 * 1024, 1024 * 1024, threading.BoundedSemaphore(2), wait_seconds=5)
"""For reading a file while a person waits."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackageInput:
    """The packages that are asked for: a list for what was typed, and one for the file."""

    lists: tuple[PackageList, ...]

    def _merged(self, values: Callable[[PackageList], Iterable[str]]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(value for each in self.lists for value in values(each)))

    @cached_property
    def lines(self) -> tuple[str, ...]:
        return self._merged(lambda each: each.lines)

    @cached_property
    def constraints(self) -> tuple[str, ...]:
        return self._merged(lambda each: each.constraints)

    @cached_property
    def indexes(self) -> tuple[str, ...]:
        return self._merged(lambda each: each.indexes)

    @cached_property
    def refused(self) -> tuple[RefusedLine, ...]:
        return tuple(line for each in self.lists for line in each.refused)

    @cached_property
    def notes(self) -> tuple[Note, ...]:
        return tuple(note for each in self.lists for note in each.notes)

    @property
    def python(self) -> str:
        """The version of Python that a list asks for, if one does."""
        return next((each.python for each in self.lists if each.python), "")

    @property
    def digest(self) -> str:
        """A hash of what was understood, with which a form shows what it was that a person saw."""
        text = json.dumps(
            [self.lines, self.constraints, self.indexes, [[each.text, each.why] for each in self.refused]]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def read_input(typed: str, file_name: str, file_text: str, allowed: Sequence[str]) -> PackageInput:
    """Return what was typed and what a file has, which may each be empty."""
    lists = [read_typed(typed, allowed)] if typed.strip() else []
    if file_name or file_text.strip():
        lists.append(read_file(file_name, file_text, allowed))
    return PackageInput(tuple(lists))


def read_file(name: str, text: str, allowed: Sequence[str]) -> PackageList:
    """Return the packages of a file, read in a process with limits: YAML and TOML of strangers can be costly."""
    name = name.replace("\\", "/").rpartition("/")[2]
    kind = kind_of(name)
    if kind is None:
        return _unread(name, f"This file is not read. Choose a {FILE_NAMES}.")
    content = text.encode(errors="replace")
    if len(content) > MAX_BYTES:
        return _unread(name, TOO_LARGE)
    with tempfile.TemporaryFile() as tar:
        with tarfile.open(fileobj=tar, mode="w") as archive:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        tar.seek(0)
        try:
            found = sandbox.run("projects.package_lists.program", tuple(allowed), tar, limits=LIMITS)
        except sandbox.NoAnswerError as error:
            logger.warning("%s could not be read: %s", name, error)
            return _unread(name, "This file could not be read within the time limit. Type its packages instead.")
    return from_json(found[0]) if found else _unread(name, "There is no package in this file.")


def _unread(name: str, why: str) -> PackageList:
    return PackageList(name, "requirements", refused=(RefusedLine(0, "", why, name),))
