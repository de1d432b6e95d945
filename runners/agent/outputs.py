"""Sends the files in a job's ``/outputs`` to the portal: new and changed regular files, and at the end copies for links.

``BesideCodeSender`` sends what a job has written into the folder of its code, which would be lost with that.

The containers of one attempt on a node share the folder, so what was sent is recorded per attempt, in a file beside the
folder. Thus the next agent does not send all of it again.
"""

import contextlib
import errno
import os
import posixpath
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from runners.agent.portal_client import PortalRefusedError, PortalUnavailableError
from runners.host.exclusive import ExclusiveSection
from runners.host.node_files import (
    FolderWalk,
    FoundFile,
    UnsafeFileError,
    open_beneath,
    read_link_beneath,
    read_own_json,
    write_json,
)
from runners.messages import Message, Quotation, message_from
from runners.messages.outputs import (
    BesideCodeTooLarge,
    FileNotKept,
    LinkLeadsOut,
    LinkToFolder,
    NameNotUtf8,
    OnlyFirstFiles,
    OutputsNotKept,
    Unreadable,
)
from runners.messages.portal import OutputChanging

STABLE_SECONDS = 5.0
"""While the job runs, a file that has not changed for this long is taken to be complete."""
MAX_FILES = 10_000
MIN_OFFER_BYTES = 8 << 20
"""Before a file of at least this size is sent, the agent asks whether the portal would keep it."""
MAX_LINK_STEPS = 8
OUTPUTS = "/outputs"
"""The folder as most runtimes show it to the job."""
MAX_NAMED = 3
"""The maximum number of complaints about single files in a report; the others are counted."""


class OutputPortal(Protocol):
    def offer_output(self, container: str, path: str, size: int) -> None: ...

    def put_output(self, container: str, path: str, file: BinaryIO, size: int) -> None: ...


@dataclass(slots=True)
class _SentOutputs:
    """The outputs that the portal has, as path -> [size, modified], and the complaints about those it refused."""

    files: dict[str, list[int]] = field(default_factory=dict)
    refused: dict[str, Message] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "_SentOutputs":
        data: Any = read_own_json(path)
        if not isinstance(data, dict):
            return cls()
        messages = data.get("complaints", {})  # the previous release has only the sentences, and drops the rest
        return cls(
            data["files"], {name: _read_message(messages.get(name), text) for name, text in data["refused"].items()}
        )

    def write(self, path: Path) -> None:
        texts = {name: each.text for name, each in self.refused.items()}
        messages = {name: each.data() for name, each in self.refused.items()}
        write_json(path, {"files": self.files, "refused": texts, "complaints": messages}, 0o600)


def _read_message(content: Any, text: str) -> Message:
    try:
        return message_from(content)
    except TypeError:
        return Quotation(text)


class OutputSender:
    """Sends the outputs of one attempt on this node, in one thread at a time."""

    def __init__(self, folder: Path, record_file: Path, portal: OutputPortal) -> None:
        self.folder = folder
        self.record_file = record_file
        self._portal = portal
        self._section = ExclusiveSection("sending its outputs")
        self._lock = threading.Lock()
        """Protects the refusals, which reports read."""
        self._sent = _SentOutputs.read(record_file)
        self._sources: dict[str, str] = {}
        """The files to which links lead, by the path of the link."""

    def send(self, container: str, *, ended: bool) -> None:
        """Send new and changed files; while the job runs, only those that have not changed for a while.

        Raises PortalUnavailableError when the portal does not answer, or at an end when a file is still being changed
        (by another container of the attempt), and BusyError while another thread sends. Nothing is sent twice.
        """
        with self._section.enter():
            changed, unsteady = False, ""
            try:
                for number, found in enumerate(self._candidates(ended)):
                    if number >= MAX_FILES:
                        self._complain("…", OnlyFirstFiles(MAX_FILES))
                        changed = True
                        break
                    if self._should_send(found, ended):
                        changed = True
                        if not self._send_one(container, found):
                            unsteady = found.path
            finally:
                if changed:
                    with contextlib.suppress(OSError):
                        self._sent.write(self.record_file)
        if ended and unsteady:
            raise PortalUnavailableError(OutputChanging(unsteady))

    def _candidates(self, ended: bool) -> Iterator[FoundFile]:
        """Yield the files to send; at the end also those to which links lead, under the names of the links."""
        walk = FolderWalk(self.folder)
        yield from walk
        for path in walk.links if ended else ():
            if found := self._file_behind(path):
                yield found

    def _file_behind(self, link: str) -> FoundFile | None:
        """Return the file to which a link leads, if that is within the folder; else record why it is not kept."""
        reason: Message = LinkLeadsOut()
        path = link
        for _ in range(MAX_LINK_STEPS):
            try:
                target = self._target_of(path)
                if target is None:
                    break
                path = target
                with open_beneath(self.folder, target) as file:
                    info = os.fstat(file.fileno())
                self._sources[link] = target
                return FoundFile(link, info.st_size, info.st_mtime_ns, info.st_blocks * 512, info.st_ctime_ns)
            except UnsafeFileError:
                continue  # another link
            except IsADirectoryError:
                reason = LinkToFolder()
                break
            except OSError:  # it leads to nothing
                break
        self._complain(link, FileNotKept(_shown(link), reason))
        return None

    def _target_of(self, link: str) -> str | None:
        """Return where a link leads, relative to the folder; None if that is outside of it. Raises OSError for no link."""
        text = read_link_beneath(self.folder, link)
        for top in (OUTPUTS, str(self.folder)):
            if text.startswith(f"{top}/"):
                return posixpath.normpath(text.removeprefix(f"{top}/"))
        target = posixpath.normpath(posixpath.join(posixpath.dirname(link), text))
        return None if target == ".." or target.startswith(("../", "/")) else target

    def _name_in_portal(self, path: str) -> str:
        return path

    def complaint(self) -> Message | None:
        """Return which files were not kept, for the job's page; None when all were."""
        with self._lock:
            refused = list(self._sent.refused.values())
        return OutputsNotKept(tuple(refused[:MAX_NAMED]), max(0, len(refused) - MAX_NAMED)) if refused else None

    def _should_send(self, found: FoundFile, ended: bool) -> bool:
        if self._sent.files.get(found.path) == [found.size, found.modified_ns]:
            return False
        return ended or abs(time.time_ns() - found.modified_ns) > STABLE_SECONDS * 1e9

    def _send_one(self, container: str, found: FoundFile) -> bool:
        """Send one file; return False when it changed while it was sent.

        The file counts as sent in the version that was opened: a later change is sent again.
        """
        version = [found.size, found.modified_ns]
        try:
            found.path.encode()
            with open_beneath(self.folder, self._sources.get(found.path, found.path)) as file:
                info = os.fstat(file.fileno())
                version = [info.st_size, info.st_mtime_ns]
                name = self._name_in_portal(found.path)
                if info.st_size >= MIN_OFFER_BYTES:
                    self._portal.offer_output(container, name, info.st_size)
                self._portal.put_output(container, name, file, info.st_size)
        except UnicodeEncodeError:
            self._refuse(found.path, version, NameNotUtf8())
        except (UnsafeFileError, FileNotFoundError):
            pass  # it is no longer a regular file
        except PortalRefusedError as refused:
            if refused.status == 401:
                raise PortalUnavailableError(refused.message) from refused
            self._refuse(found.path, version, refused.message)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return False
            self._refuse(found.path, version, Quotation(error.strerror) if error.strerror else Unreadable())
        else:
            self._sent.files[found.path] = version
            with self._lock:
                self._sent.refused.pop(found.path, None)
        return True

    def _refuse(self, path: str, version: list[int], reason: Message) -> None:
        """Record that a file was not kept; it is not sent again until it changes."""
        self._sent.files[path] = version
        self._complain(path, FileNotKept(_shown(self._name_in_portal(path)), reason))

    def _complain(self, path: str, complaint: Message) -> None:
        with self._lock:
            self._sent.refused[path] = complaint


def _shown(path: str) -> str:
    return path.encode(errors="replace").decode()[:200]


BESIDE_CODE = "beside-code"
"""The folder of the outputs that has what a job wrote beside its code."""
MAX_BESIDE_FILES = 200
MAX_BESIDE_MIB = 100
NOT_RESULTS = re.compile(r"(?:.*/)?(?:\.|__pycache__/|node_modules/|core(?:\.\d+)?$|[^/]*\.pyc$)")
"""Caches, hidden files and memory dumps, which are no results."""


class BesideCodeSender(OutputSender):
    """Sends, once a container has ended, what was written into the folder of its code since it was prepared.

    The smallest files are kept first, up to a number and a size.
    """

    def __init__(
        self, folder: Path, record_file: Path, portal: OutputPortal, prepared_ns: int, subfolder: str = ""
    ) -> None:
        super().__init__(folder, record_file, portal)
        self._prepared_ns = prepared_ns
        self._prefix = f"{BESIDE_CODE}/{subfolder}/" if subfolder else f"{BESIDE_CODE}/"

    def _candidates(self, ended: bool) -> Iterator[FoundFile]:
        written = [
            found
            for found in FolderWalk(self.folder)
            if found.changed_ns > self._prepared_ns and not NOT_RESULTS.match(found.path)
        ]
        left = MAX_BESIDE_MIB << 20
        for number, found in enumerate(sorted(written, key=lambda found: (found.size, found.path))):
            left -= found.size
            if number < MAX_BESIDE_FILES and left >= 0:
                yield found
            else:
                self._refuse(
                    found.path, [found.size, found.modified_ns], BesideCodeTooLarge(MAX_BESIDE_MIB, MAX_BESIDE_FILES)
                )

    def _name_in_portal(self, path: str) -> str:
        return self._prefix + path
