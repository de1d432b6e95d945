"""Keeps the files of an upload from which its package lists are read."""

from typing import IO

from .collecting import MAX_BYTES
from .finding import MAX_READ, kind_of, may_be_included
from .texts import decode


class ListFiles:
    """The texts of an upload that its lists are read from, gathered while its tar is read once."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def wants(self, path: str) -> bool:
        """Return whether to keep a file. Lists have precedence: other texts fill only half of the places."""
        places = MAX_READ if kind_of(path) else MAX_READ // 2 if may_be_included(path) else 0
        return len(self.contents) < places

    def add(self, path: str, file: IO[bytes] | None) -> None:
        """Keep a file, or as much of it as shows that it is too large."""
        self.contents[path] = file.read(MAX_BYTES + 1) if file else b""

    def text(self, path: str) -> str:
        """Return the text of a file; empty if it is not kept."""
        return decode(self.contents.get(path, b""))
