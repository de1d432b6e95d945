"""Datasets as nodes fetch them: a manifest, contents, and a portal that gives them, breaks off and lies on purpose."""

import hashlib
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runners.agent.portal_client import PortalRefusedError, PortalUnavailableError
from runners.messages import Quotation
from runners.spec import DatasetMount


@dataclass(frozen=True)
class MadeDataset:
    """Files by path; those in ``executable`` are programs."""

    files: Mapping[str, bytes]
    executable: frozenset[str] = frozenset()

    @property
    def order(self) -> list[str]:
        return sorted(self.files, key=str.encode)

    def line(self, path: str) -> bytes:
        content = self.files[path]
        mark = "x" if path in self.executable else "-"
        return f"{hashlib.sha256(content).hexdigest()} {len(content)} {mark} {path}\n".encode()

    @property
    def manifest(self) -> bytes:
        return b"".join(map(self.line, self.order))

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.manifest).hexdigest()

    @property
    def size(self) -> int:
        return sum(map(len, self.files.values()))

    def contents(self, line: int, count: int, offset: int) -> bytes:
        position = 0
        chosen: list[bytes] = []
        for path in self.order:
            if position >= line and len(chosen) < count:
                chosen.append(self.files[path])
            position += len(self.line(path))
        return b"".join(chosen)[offset:]

    def mount(self, name: str = "digits", path: str = "", *, writable: bool = False) -> DatasetMount:
        return DatasetMount(name, self.sha256, len(self.manifest), self.size, path, writable)


def no_harm(part: str, number: int, content: bytes) -> bytes:
    return content


@dataclass
class DatasetGiver:
    """The portal's endpoints for datasets. ``harm`` changes what is sent: a shorter one breaks off."""

    datasets: Mapping[str, MadeDataset]
    harm: Callable[[str, int, bytes], bytes] = no_harm
    """Given the part, how many requests there were before, and the content."""
    piece: int = 1000
    requests: list[tuple[str, dict[str, int]]] = field(default_factory=list)
    sent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    refusal: str = ""

    @classmethod
    def of(cls, *made: MadeDataset) -> "DatasetGiver":
        return cls({each.sha256: each for each in made})

    def dataset_pieces(self, container: str, sha256: str, part: str, **at: int) -> Generator[bytes, None, None]:
        if self.refusal:
            raise PortalRefusedError(403, self.refusal)
        with self.lock:
            number = len(self.requests)
            self.requests.append((part, at))
        made = self.datasets[sha256]
        whole = made.manifest[at["offset"] :] if part == "manifest" else made.contents(**at)
        given = self.harm(part, number, whole)
        for start in range(0, len(given), self.piece):
            piece = given[start : start + self.piece]
            with self.lock:
                self.sent += len(piece)
            yield piece
        if len(given) < len(whole):
            raise PortalUnavailableError(Quotation("the connection broke"))


def content_of(folder: Path) -> dict[str, bytes]:
    """What a job sees."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
