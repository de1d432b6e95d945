"""Responses that are produced piece by piece, so that a large file is never in memory as a whole.

The server asks for the next piece when the client has read the ones before (``portal.serving.paced``).
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from urllib.parse import quote
from weakref import WeakValueDictionary

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from portal.errors import is_program
from portal.rest import error_response

PIECE_BYTES = 64 * 1024


MAX_DOWNLOADS = 6
"""Of one user at the same time, in this process."""

_downloads: Counter[int | None] = Counter()
_reader_locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
"""A piece of a log can take 0.1 s to produce, so the downloads of one user produce theirs one after another."""
NO_LOCK = nullcontext()


def stream(request: HttpRequest, pieces: Iterator[bytes], content_type: str) -> HttpResponseBase:
    """Return a response that streams ``pieces``, or 429 for a user who has ``MAX_DOWNLOADS`` in progress.

    Under ASGI, Django would first collect a plain iterator; here each piece is produced in a thread on demand.
    ``pieces`` may read files but not the database, whose connection belongs to another thread.
    """
    reader = request.user.pk  # None is a node
    if reader is not None and _downloads[reader] >= MAX_DOWNLOADS:
        return _refusal(request)
    source = _count_while_streamed(pieces, reader) if isinstance(request, ASGIRequest) else pieces
    return StreamingHttpResponse(source, content_type=content_type)


def _refusal(request: HttpRequest) -> HttpResponse:
    text = f"You have {MAX_DOWNLOADS} downloads in progress. Wait until one of them is finished, then try again."
    if is_program(request):
        return error_response(429, text)
    return HttpResponse(text, status=429, content_type="text/plain; charset=utf-8")


async def _count_while_streamed(pieces: Iterator[bytes], reader: int | None) -> AsyncIterator[bytes]:
    _downloads[reader] += 1
    lock = NO_LOCK if reader is None else _reader_locks.setdefault(reader, asyncio.Lock())
    try:
        async with aclosing(in_threads(pieces, lock)) as source:
            async for piece in source:
                yield piece
    finally:
        _downloads.subtract([reader])


async def in_threads(
    pieces: Iterator[bytes], lock: AbstractAsyncContextManager[None] = NO_LOCK
) -> AsyncGenerator[bytes, None]:
    """Yield the pieces, each produced on demand in a thread while ``lock`` is held."""
    try:
        while True:
            async with lock:
                piece = await _next(pieces)
            if piece is None:
                break
            yield piece
    finally:
        # the client may have disconnected: files are closed now, not at the next garbage collection
        if close := getattr(pieces, "close", None):
            await asyncio.to_thread(close)


async def _next(pieces: Iterator[bytes]) -> bytes | None:
    """Return the next piece, None at the end. A cancellation waits for the piece: a running iterator cannot be closed."""
    making = asyncio.ensure_future(asyncio.to_thread(next, pieces, None))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        await asyncio.wait([making])
        raise


def join_small_pieces(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Join lines into larger pieces, because each piece costs a switch to a thread."""
    buffer = bytearray()
    for line in lines:
        buffer += line
        if len(buffer) >= PIECE_BYTES:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)


def attachment_header(name: str) -> str:
    """Return the Content-Disposition header for a file name that any user may have chosen."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._- ") else "_" for c in name).strip() or "file"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
