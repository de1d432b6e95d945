"""Fetches the outputs of an earlier job, which a job finds in its folder of inputs.

All containers of an attempt on this node share one folder beside its outputs. It is filled under another name and then
renamed, so a folder of that name is complete; an agent that was killed begins again.
"""

import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from runners.agent.journal import delete_tree
from runners.agent.portal_client import PortalUnavailableError
from runners.host.exclusive import ExclusiveSection
from runners.messages import Message
from runners.messages.containers import InputsArrived
from runners.messages.portal import AnswerNotUnderstood

MAX_FILES = 10_000
"""The portal keeps no more outputs of a job."""
MAX_BYTES = 1 << 40
INVALID_CHARACTERS = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
SHA256 = re.compile(r"[0-9a-f]{64}")
FETCH_WAIT_SECONDS = 30.0
"""How long one container waits while another of its attempt fetches the same files; then it asks again."""


class InputPortal(Protocol):
    def inputs(self, container: str) -> dict[str, Any]: ...

    def fetch_input(self, container: str, sha256: str, into: BinaryIO, max_bytes: int) -> None:
        """Write the file and check its hash."""


@dataclass(frozen=True, slots=True)
class InputFile:
    path: str
    size: int
    sha256: str

    @classmethod
    def from_json(cls, data: Any) -> "InputFile":
        """Raise TypeError, KeyError or ValueError for what is not a file beneath the folder."""
        file = cls(str(data["path"]), int(data["size"]), str(data["sha256"]))
        parts = file.path.split("/")
        if any(part in ("", ".", "..") for part in parts) or INVALID_CHARACTERS.search(file.path):
            raise ValueError("an input has an invalid path")
        if not SHA256.fullmatch(file.sha256) or not 0 <= file.size <= MAX_BYTES:
            raise ValueError("an input has an invalid hash or size")
        return file


class JobInputs:
    """The inputs of the attempts on this node. Two containers of an attempt fetch them once."""

    def __init__(self, portal: InputPortal) -> None:
        self._portal = portal
        self._lock = threading.Lock()
        self._fetching: defaultdict[Path, ExclusiveSection] = defaultdict(
            lambda: ExclusiveSection("fetching the inputs")
        )

    def fetch(self, container: str, folder: Path, report_progress: Callable[[Message], None]) -> None:
        """Fill ``folder`` unless it is there. Raises PortalUnavailableError or BusyError: try again; PortalRefusedError:
        the portal does not have them; OSError when the disk is full."""
        with self._lock:
            section = self._fetching[folder]
        with section.enter(FETCH_WAIT_SECONDS):
            if folder.is_dir():
                return
            files = self._list(container)
            fresh = folder.with_name(f"{folder.name}.new")
            delete_tree(fresh)
            fresh.mkdir(mode=0o755)
            total, done = sum(file.size for file in files) >> 20, 0
            for file in files:
                report_progress(InputsArrived(done >> 20, total))
                self._fetch_file(container, fresh, file)
                done += file.size
            fresh.rename(folder)

    def forget(self, folder: Path) -> None:
        """Forget an attempt that has no more containers here."""
        with self._lock:
            self._fetching.pop(folder, None)

    def _list(self, container: str) -> list[InputFile]:
        try:
            files = [InputFile.from_json(entry) for entry in self._portal.inputs(container)["files"]]
        except (KeyError, TypeError, ValueError) as error:
            raise PortalUnavailableError(AnswerNotUnderstood("GET inputs")) from error
        if len(files) > MAX_FILES:
            raise PortalUnavailableError(AnswerNotUnderstood("GET inputs"))
        return files

    def _fetch_file(self, container: str, top: Path, file: InputFile) -> None:
        place = top / file.path
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with place.open("xb") as target:
            self._portal.fetch_input(container, file.sha256, target, file.size)
            target.flush()
            os.fsync(target.fileno())
        place.chmod(0o444)
