"""Answers that are made piece by piece, so that a large file never lies in memory as a whole."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from urllib.parse import quote

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

PIECE_BYTES = 64 * 1024


def stream(request: HttpRequest, pieces: Iterator[bytes], content_type: str) -> StreamingHttpResponse:
    """Under ASGI Django would gather a plain iterator first: there each piece is made in a thread when it is asked for.

    ``pieces`` may read files but not the database, whose connection belongs to another thread.
    """
    source = _in_threads(pieces) if isinstance(request, ASGIRequest) else pieces
    return StreamingHttpResponse(source, content_type=content_type)


async def _in_threads(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    try:
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece
    finally:
        # the client may have gone away in the middle: files are closed now, not when memory is collected
        if close := getattr(pieces, "close", None):
            await asyncio.to_thread(close)


def gathered(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Lines in larger pieces: each piece costs a turn of a thread."""
    buffer = bytearray()
    for line in lines:
        buffer += line
        if len(buffer) >= PIECE_BYTES:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)


def attachment(name: str) -> str:
    """Content-Disposition for a name that anybody may have chosen."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._- ") else "_" for c in name).strip() or "file"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
