"""Bytes as text: UTF-8, UTF-16 with a mark, or Windows-1252, if it looks like text at all."""

import io
import re
from dataclasses import dataclass

NO_TEXT = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
"""Control characters that no text has; ESC is there for colours of terminals."""
MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
MAX_NUL_SHARE = 0.1
ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\^_]?")
BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Characters that change the order in which others are shown."""


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    encoding: str = ""
    """The name of an encoding other than UTF-8."""


def decode(data: bytes, *, complete: bool, with_nul: bool = False) -> Text | None:
    """Return the text, None for a binary file. Unless the data is ``complete``, its last character may be cut."""
    if (encoding := MARKS.get(data[:2])) is not None:
        text = _decode(data[2:], encoding, complete)
        return Text(text, "UTF-16") if text is not None and "\0" not in text else None
    if b"\0" in data:
        if not with_nul or data.count(0) > len(data) * MAX_NUL_SHARE:
            return None
        data = data.replace(b"\0", "\u2400".encode())
    text = _decode(data, "utf-8", complete)
    if text is not None:
        return Text(text.removeprefix("\ufeff"))
    plain = sum(byte < 0x80 for byte in data[:4096])
    if NO_TEXT.search(data) or plain < len(data[:4096]) * 0.7:
        return None
    return Text(data.decode("cp1252", "replace"), "Windows-1252")


def _decode(data: bytes, encoding: str, complete: bool) -> str | None:
    for cut in range(1 if complete else 4):
        try:
            return data[: len(data) - cut].decode(encoding)
        except UnicodeDecodeError as error:
            if error.start < len(data) - 4:
                return None
    return None


def universal_newlines(text: str) -> str:
    """Return the text with the line ends that Python's own line numbers count."""
    return io.StringIO(text, newline=None).read()


def without_ansi(text: str) -> str:
    """Return what a terminal would show: without colours, and of a line that was written over only the last state."""
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in ANSI.sub("", text).split("\n"))
