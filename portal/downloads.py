"""Sends what users made back to them as files, never as something a browser would show or run in our name."""

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.http import content_disposition_header


def attachment(
    request: HttpRequest,
    name: str,
    pieces: Iterator[bytes],
    size: int | None = None,
    content_type: str = "application/octet-stream",
) -> StreamingHttpResponse:
    """The pieces as a download of this name, read as fast as the client takes them. They must not need the database."""
    response = harmless(StreamingHttpResponse(served(request, pieces), content_type=content_type))
    response["Content-Disposition"] = content_disposition_header(True, name.rpartition("/")[2] or "download") or ""
    if size is not None:
        response["Content-Length"] = str(size)
    return response


def harmless(response: StreamingHttpResponse) -> StreamingHttpResponse:
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    response["X-Content-Type-Options"] = "nosniff"
    response["Cache-Control"] = "private, no-store"
    return response


def served(request: HttpRequest, pieces: Iterator[bytes]) -> Iterator[bytes] | AsyncIterator[bytes]:
    """Under ASGI, Django would collect a plain iterator in memory before it sends the first byte."""
    return _asynchronously(pieces) if isinstance(request, ASGIRequest) else pieces


async def _asynchronously(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    following = sync_to_async(next, thread_sensitive=False)
    try:
        while (piece := await following(pieces, None)) is not None:
            yield piece
    finally:
        if close := getattr(pieces, "close", None):
            await sync_to_async(close, thread_sensitive=False)()
