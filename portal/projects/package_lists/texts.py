"""Bytes of a file to its lines, whatever editor or shell wrote them."""

import codecs
import re
from collections.abc import Iterator

MAX_SHOWN = 200
"""Characters of a refused line that are shown."""

_ENCODINGS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_COMMENT = re.compile(r"(^|\s)#.*$", re.DOTALL)
_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")


def decode(content: bytes) -> str:
    """Return the text of a file in UTF-8, UTF-16 (as ``>`` of PowerShell writes it) or Latin-1."""
    for mark, encoding in _ENCODINGS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, errors="replace")
    head = content[:64]
    if len(head) >= 4 and head[1::2].count(0) == len(head) // 2:  # UTF-16 without its mark
        return content.decode("utf-16-le", errors="replace")
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments, each with the number of its first line; a ``\\`` at the end joins the next. None is empty."""
    parts: list[str] = []
    first = 0
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        first = first if parts else number
        is_comment = line.lstrip().startswith("#")
        if line.endswith("\\") and not is_comment:
            parts.append(line[:-1])
            continue
        parts.append("" if is_comment else line)
        if whole := _COMMENT.sub("", "".join(parts)).strip():
            yield first, whole
        parts = []
    if whole := _COMMENT.sub("", "".join(parts)).strip():
        yield first, whole


def shown(text: str, limit: int = MAX_SHOWN) -> str:
    """Return a user's text on one line for a page: printable, of limited length, without the credentials of addresses."""
    line = "".join(c if c.isprintable() else " " for c in text[: 4 * limit])
    line = _CREDENTIALS.sub("***@", " ".join(line.split()))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
