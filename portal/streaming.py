"""Answers that are made piece by piece, so that a large file never lies in memory as a whole.

The server asks for a piece when the reader has taken the ones before (``portal.serving.paced``).
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
"""Of one user at once, in this process."""

_downloads: Counter[int | None] = Counter()
_turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
"""A piece of a log may take a tenth of a second to make, so one user's downloads make theirs in turn."""
NO_TURNS = nullcontext()


def stream(request: HttpRequest, pieces: Iterator[bytes], content_type: str) -> HttpResponseBase:
    """Under ASGI Django would gather a plain iterator first: there each piece is made in a thread when it is asked for.

    ``pieces`` may read files but not the database, whose connection belongs to another thread. A user who reads
    ``MAX_DOWNLOADS`` already is refused with 429.
    """
    reader = request.user.pk  # None is a node
    if reader is not None and _downloads[reader] >= MAX_DOWNLOADS:
        return _refusal(request)
    source = _counted(pieces, reader) if isinstance(request, ASGIRequest) else pieces
    return StreamingHttpResponse(source, content_type=content_type)


def _refusal(request: HttpRequest) -> HttpResponse:
    text = f"You have {MAX_DOWNLOADS} downloads under way. Let one of them finish, then try again."
    if is_program(request):
        return error_response(429, text)
    return HttpResponse(text, status=429, content_type="text/plain; charset=utf-8")


async def _counted(pieces: Iterator[bytes], reader: int | None) -> AsyncIterator[bytes]:
    _downloads[reader] += 1
    turn = NO_TURNS if reader is None else _turns.setdefault(reader, asyncio.Lock())
    try:
        async with aclosing(in_threads(pieces, turn)) as source:
            async for piece in source:
                yield piece
    finally:
        _downloads.subtract([reader])


async def in_threads(
    pieces: Iterator[bytes], turn: AbstractAsyncContextManager[None] = NO_TURNS
) -> AsyncGenerator[bytes, None]:
    """Make each piece in a thread when it is asked for, and when it is this iterator's ``turn``."""
    try:
        while True:
            async with turn:
                piece = await _made(pieces)
            if piece is None:
                break
            yield piece
    finally:
        # the client may have gone away in the middle: files are closed now, not when memory is collected
        if close := getattr(pieces, "close", None):
            await asyncio.to_thread(close)


async def _made(pieces: Iterator[bytes]) -> bytes | None:
    """The next piece. A client that leaves meanwhile is followed once it is made: an iterator at work cannot be closed."""
    making = asyncio.ensure_future(asyncio.to_thread(next, pieces, None))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        await asyncio.wait([making])
        raise


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
