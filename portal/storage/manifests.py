"""The manifest of a version of a dataset: one line for each file, sorted by path, as a blob of its own.

    <sha256> <size in bytes> <x if it is executable, else -> <path>

Equal files give an equal manifest, so its hash is the identity of the content. A manifest may have a million lines: it is
written and read piece by piece, and a file or folder is found by binary search.
"""

import heapq
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256 as new_sha256
from types import TracebackType
from typing import IO, BinaryIO, Self

MAX_FILES = 1_000_000
"""Files of one version."""
RUN_LINES = 100_000
"""Lines that are sorted in memory: about 20 MB."""


class ManifestError(Exception):
    """The files cannot be one dataset; the text is for the user."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a dataset. The path has no control characters, and no parts that are empty, ``.`` or ``..``."""

    path: str
    size: int
    sha256: str
    executable: bool = False

    def line(self) -> bytes:
        return f"{self.sha256} {self.size} {'x' if self.executable else '-'} {self.path}\n".encode()

    @classmethod
    def of_line(cls, line: bytes) -> "FileEntry":
        sha256, size, mark, path = line.rstrip(b"\n").split(b" ", 3)
        return cls(path.decode(), int(size), sha256.decode(), mark == b"x")


@dataclass(frozen=True, slots=True)
class FolderItem:
    """What a folder shows: a file with its entry, or a folder, for which ``entry`` is None."""

    name: str
    entry: FileEntry | None = None

    @property
    def cursor(self) -> str:
        """What ``Manifest.folder`` takes as ``after`` to go on behind it."""
        return self.name if self.entry else f"{self.name}/"


@dataclass(frozen=True, slots=True)
class Totals:
    """The hash of a manifest, its own size in bytes, and the number and bytes of its files."""

    sha256: str
    manifest_bytes: int
    files: int
    size: int


class ManifestBuilder:
    """Collects entries in any order, and writes them as a manifest. Memory stays constant: sorted runs wait on the disk."""

    def __init__(self, run_lines: int = RUN_LINES) -> None:
        self._run_lines = run_lines
        self._lines: list[bytes] = []
        self._runs: list[IO[bytes]] = []
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for run in self._runs:
            run.close()

    def add(self, entry: FileEntry) -> None:
        """Add a file. Raises ManifestError when there are too many."""
        self.count += 1
        if self.count > MAX_FILES:
            raise ManifestError(
                f"It has more than {MAX_FILES:,} files. Pack small files together, or make several datasets."
            )
        self._lines.append(entry.line())
        if len(self._lines) >= self._run_lines:
            self._spill()

    def write(self, out: IO[bytes]) -> Totals:
        """Write the manifest. Raises ManifestError if two files have the same path, or a file is also a folder."""
        digest, size, files, written = new_sha256(), 0, 0, 0
        above: list[str] = []
        last = None
        for line in heapq.merge(*self._runs, sorted(self._lines, key=_path_of), key=_path_of):
            entry = FileEntry.of_line(line)
            if entry.path == last:
                raise ManifestError(f"“{entry.path}” is in it twice. Leave one out.")
            last = entry.path
            # Paths that begin with that of an earlier file follow it, though not at once: a, a.txt, a/b.
            while above and not entry.path.startswith(above[-1]):
                above.pop()
            if file := next((each for each in above if entry.path.startswith(f"{each}/")), None):
                raise ManifestError(f"“{file}” is both a file and a folder. Rename one of them.")
            above.append(entry.path)
            files, size = files + 1, size + entry.size
            digest.update(line)
            written += out.write(line)
        return Totals(digest.hexdigest(), written, files, size)

    def _spill(self) -> None:
        run = tempfile.TemporaryFile()  # noqa: SIM115  # closed by __exit__
        self._runs.append(run)
        self._lines.sort(key=_path_of)
        run.writelines(self._lines)
        run.seek(0)
        self._lines = []


class Manifest:
    """Finds files in a manifest, which is open for reading. ``size`` is that of the manifest in bytes."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size

    def __iter__(self) -> Iterator[FileEntry]:
        self._file.seek(0)
        return map(FileEntry.of_line, self._file)

    def find(self, path: str) -> FileEntry | None:
        """Return the file with this path."""
        line = self._line_at(self._first_from(path.encode()))
        return FileEntry.of_line(line) if line and _path_of(line) == path.encode() else None

    def folder(self, path: str, after: str = "", count: int = 100) -> tuple[list[FolderItem], str]:
        """Return up to ``count`` files and folders that are in a folder, and the cursor behind them; "" at the end.

        ``path`` is "" for the top. The cost depends on ``count``, not on the number of files.
        """
        inside = f"{path}/".encode() if path else b""
        key = inside + after.encode()
        at = self._first_from(_behind(key) if after else inside)
        items: list[FolderItem] = []
        while (line := self._line_at(at)) and _path_of(line).startswith(inside):
            if len(items) == count:
                return items, items[-1].cursor
            name, slash, _ = _path_of(line)[len(inside) :].partition(b"/")
            if slash:
                items.append(FolderItem(name.decode()))
                at = self._first_from(_behind(inside + name + b"/"))
            else:
                items.append(FolderItem(name.decode(), FileEntry.of_line(line)))
                at += len(line)
        return items, ""

    def _first_from(self, key: bytes) -> int:
        """Return the position of the first line whose path is not before ``key``."""
        low, high = 0, self._size
        while low < high:
            middle = (low + high) // 2
            start = self._line_start(middle)
            line = self._line_at(start) if start < high else b""
            if line and _path_of(line) < key:
                low = start + len(line)
            else:
                high = middle
        return low

    def _line_start(self, position: int) -> int:
        """Return where the first line begins that does not begin before ``position``."""
        if position == 0:
            return 0
        self._file.seek(position - 1)
        return position - 1 + len(self._file.readline())

    def _line_at(self, position: int) -> bytes:
        if position >= self._size:
            return b""
        self._file.seek(position)
        return self._file.readline()


def _path_of(line: bytes) -> bytes:
    return line.split(b" ", 3)[3].rstrip(b"\n")


def _behind(key: bytes) -> bytes:
    """Return the first key behind a file, or behind everything in a folder, whose key ends with a slash."""
    return key[:-1] + b"0" if key.endswith(b"/") else key + b"\0"
