"""Sends the files in a job's ``/outputs`` to the portal: new and changed regular files, and nothing else.

The containers of one attempt on a node share the folder, so what was sent is recorded per attempt, in a file beside the
folder. Thus the next agent does not send all of it again.
"""

import contextlib
import errno
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from runners.agent.portal_client import PortalRefusedError, PortalUnavailableError
from runners.host.exclusive import ExclusiveSection
from runners.host.node_files import FolderWalk, FoundFile, UnsafeFileError, open_beneath, read_own_json, write_json
from runners.messages import Message, Quotation, message_from
from runners.messages.outputs import FileNotKept, NameNotUtf8, OnlyFirstFiles, OutputsNotKept, Unreadable
from runners.messages.portal import OutputChanging

STABLE_SECONDS = 5.0
"""While the job runs, a file that has not changed for this long is taken to be complete."""
MAX_FILES = 10_000
MIN_OFFER_BYTES = 8 << 20
"""Before a file of at least this size is sent, the agent asks whether the portal would keep it."""
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

    def send(self, container: str, *, ended: bool) -> None:
        """Send new and changed files; while the job runs, only those that have not changed for a while.

        Raises PortalUnavailableError when the portal does not answer, or at an end when a file is still being changed
        (by another container of the attempt), and BusyError while another thread sends. Nothing is sent twice.
        """
        with self._section.enter():
            changed, unsteady = False, ""
            walk = FolderWalk(self.folder)
            try:
                for number, found in enumerate(walk):
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
            with open_beneath(self.folder, found.path) as file:
                info = os.fstat(file.fileno())
                version = [info.st_size, info.st_mtime_ns]
                if info.st_size >= MIN_OFFER_BYTES:
                    self._portal.offer_output(container, found.path, info.st_size)
                self._portal.put_output(container, found.path, file, info.st_size)
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
        shown = path.encode(errors="replace").decode()[:200]
        self._sent.files[path] = version
        self._complain(path, FileNotKept(shown, reason))

    def _complain(self, path: str, complaint: Message) -> None:
        with self._lock:
            self._sent.refused[path] = complaint
