"""The log of a build as pages show it. What it contains was written by installers and packages of others."""

import re
from contextlib import suppress
from dataclasses import dataclass

from portal.environments import log_files
from portal.environments.builds import log_path
from portal.environments.models import Build

FIRST_BYTES = 128 * 1024
"""How much of the end of a log a page has when it is opened; the whole log is a download."""
PIECE_BYTES = 128 * 1024

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A part of a log: its text, and the offset in bytes after it, at which the next begins."""

    text: str
    end: int
    is_cut: bool = False
    """Whether earlier lines are left out."""


def size_of(build: Build) -> int:
    """Return the offset at the end of the log."""
    return log_files.size_of(log_path(build))


def end_of_log(build: Build) -> LogPiece:
    """Return the last lines of a log."""
    start = max(0, size_of(build) - FIRST_BYTES)
    content, end = log_files.read_from(log_path(build), start, FIRST_BYTES)
    if start:
        content = content[content.find(b"\n") + 1 :]
    return LogPiece(shown_text(content.decode(errors="replace")), end, bool(start))


def log_from(build: Build, offset: int) -> LogPiece:
    """Return what follows ``offset``, at most ``PIECE_BYTES``, in whole characters."""
    content, end = log_files.read_from(log_path(build), offset, PIECE_BYTES)
    for spare in range(4):  # the limit may divide the last character
        with suppress(UnicodeDecodeError):
            text = content[: len(content) - spare].decode()
            return LogPiece(text, end - spare)
    return LogPiece(content.decode(errors="replace"), end)


def shown_text(text: str) -> str:
    """Return a text without escape sequences, with the last state of lines that were drawn again, and with characters that
    hide or reorder others as ``\\u202e``."""
    lines = (_ESCAPES.sub("", line).rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join("".join(_shown(character) for character in line) for line in lines)


def _shown(character: str) -> str:
    if character.isprintable() or character == "\t":
        return character
    return f"\\u{ord(character):04x}" if ord(character) > 0x1F else ""
