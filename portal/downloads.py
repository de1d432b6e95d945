"""Sends what users made back to them as files, never as something a browser would show or run in our name."""

from collections.abc import Iterator

from django.http import HttpRequest, HttpResponseBase

from portal.streaming import attachment, stream


def download(
    request: HttpRequest,
    name: str,
    pieces: Iterator[bytes],
    size: int | None = None,
    content_type: str = "application/octet-stream",
) -> HttpResponseBase:
    """The pieces as a download of this name, read as fast as the client takes them. They must not need the database."""
    response = stream(request, pieces, content_type)
    if not response.streaming:
        return response  # refused
    response["Content-Disposition"] = attachment(name.rpartition("/")[2])
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    response["X-Content-Type-Options"] = "nosniff"
    response["Cache-Control"] = "private, no-cache"
    if size is not None:
        response["Content-Length"] = str(size)
    return response
