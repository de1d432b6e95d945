"""Sends users' files as downloads, which a browser never shows or runs on the portal's origin."""

from collections.abc import Iterator

from django.http import HttpRequest, HttpResponseBase

from portal.streaming import attachment_header, stream


def download(
    request: HttpRequest,
    name: str,
    pieces: Iterator[bytes],
    size: int | None = None,
    content_type: str = "application/octet-stream",
) -> HttpResponseBase:
    """Return the pieces as a download of this name. They are read as fast as the client is, and must not use the database."""
    response = stream(request, pieces, content_type)
    if not response.streaming:
        return response  # refused
    response["Content-Disposition"] = attachment_header(name.rpartition("/")[2])
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    response["X-Content-Type-Options"] = "nosniff"
    response["Cache-Control"] = "private, no-cache"
    if size is not None:
        response["Content-Length"] = str(size)
    return response
