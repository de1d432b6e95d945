"""The log of a build or fetch as pages show it. What it contains was written by programs and servers of others."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from portal import log_files

FIRST_BYTES = 128 * 1024
"""How much of the end of a log a page has when it is opened; the whole log is a download."""
PIECE_BYTES = 128 * 1024
READ_BYTES = 256 * 1024
MAX_OFFSET_DIGITS = 12

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A part of a log: its text, and the offset in bytes after it, at which the next begins."""

    text: str
    end: int
    is_cut: bool = False
    """Whether earlier lines are left out."""


def end_of_log(path: Path) -> LogPiece:
    """Return the last lines of a log."""
    start = max(0, log_files.size_of(path) - FIRST_BYTES)
    content, end = log_files.read_from(path, start, FIRST_BYTES)
    if start:
        content = content[content.find(b"\n") + 1 :]
    return LogPiece(shown_text(content.decode(errors="replace")), end, bool(start))


def log_from(path: Path, offset: int) -> LogPiece:
    """Return what follows ``offset``, at most ``PIECE_BYTES``, in whole characters."""
    content, end = log_files.read_from(path, offset, PIECE_BYTES)
    for spare in range(4):  # the limit may divide the last character
        with suppress(UnicodeDecodeError):
            text = content[: len(content) - spare].decode()
            return LogPiece(text, end - spare)
    return LogPiece(content.decode(errors="replace"), end)


def is_offset(text: str) -> bool:
    """Return whether a text of an address is a number of bytes that a log may have."""
    return text.isascii() and text.isdecimal() and len(text) <= MAX_OFFSET_DIGITS


def whole_log(path: Path) -> tuple[int, Iterator[bytes]]:
    """Return the size of the file and its pieces, for a download."""
    size = path.stat().st_size if path.exists() else 0
    return size, _pieces(path, size)


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    if not size:
        return
    with path.open("rb") as file:
        while size > 0 and (piece := file.read(min(size, READ_BYTES))):
            size -= len(piece)
            yield piece


def shown_text(text: str) -> str:
    """Return a text without escape sequences, with the last state of lines that were drawn again, and with characters that
    hide or reorder others as ``\\u202e``."""
    lines = (_ESCAPES.sub("", line).rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join("".join(_shown(character) for character in line) for line in lines)


def _shown(character: str) -> str:
    if character.isprintable() or character == "\t":
        return character
    return f"\\u{ord(character):04x}" if ord(character) > 0x1F else ""
