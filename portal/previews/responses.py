"""Responses with parts of a file for the page that shows it: images, recordings, HTML in a frame.

Each has a policy of its own, under which nothing runs and nothing is loaded, even if it is opened by itself.
"""

import re

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotModified

from portal import sandbox
from portal.downloads import download
from portal.previews import kinds
from portal.previews.decoding import decode
from portal.previews.files import StoredFile
from portal.previews.preview import LARGE_IMAGE, MAX_BYTES, MAX_FRAMED_BYTES, SMALL_IMAGE, ask

NOTHING = "sandbox; default-src 'none'"
FRAMED = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
SIZES = {"": LARGE_IMAGE, "small": SMALL_IMAGE}
IMAGES_VERSION = 1
"""Part of the tag by which browsers keep images; raised when they are encoded in another way."""
RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")


def image_response(request: HttpRequest, file: StoredFile) -> HttpResponseBase:
    """Send an image, encoded again; ``?size=small`` for lists, ``?number=`` for one of a notebook."""
    size, number = request.GET.get("size", ""), request.GET.get("number", "")
    if size not in SIZES or not re.fullmatch(r"\d{0,4}", number, re.ASCII):
        raise Http404("There is no such image.")
    tag = f'"{file.sha256[:40]}-{IMAGES_VERSION}-{size}-{number}"'
    if request.headers.get("If-None-Match") == tag:
        return _protect(HttpResponseNotModified(), tag)
    if number:
        if kinds.ending_of(file.path) != ".ipynb" or file.size > MAX_BYTES["notebook"]:
            raise Http404("This is not a notebook.")
    elif file.size > MAX_BYTES["image"] or kinds.image_format(file.head(16)) is None:
        raise Http404("This is not an image that can be shown.")
    try:
        kind = "notebook-image" if number else "image"
        found, data = ask(file, kind, max_side=SIZES[size], number=int(number or 0))
    except sandbox.NoAnswerError:
        raise Http404("This image could not be decoded within the limits of time and memory.") from None
    if found["kind"] != "image":
        raise Http404(found.get("problem", "This is not an image."))
    return _protect(HttpResponse(data, content_type=found["type"]), tag)


def _protect(response: HttpResponse, tag: str) -> HttpResponse:
    response["ETag"] = tag
    response["Cache-Control"] = "private, no-cache"
    response["Content-Security-Policy"] = NOTHING
    response["X-Content-Type-Options"] = "nosniff"
    return response


def media_response(request: HttpRequest, file: StoredFile) -> HttpResponseBase:
    """Send a recording for <audio> or <video>, or the part of it that the browser asks for."""
    media_type = kinds.recording_type(file.path, file.head(16))
    if media_type is None:
        raise Http404("This is not a recording that can be played.")
    part = _asked_part(request.headers.get("Range", ""), file.size)
    if part is not None and not part:
        response: HttpResponseBase = HttpResponse(status=416)
        response["Content-Range"] = f"bytes */{file.size}"
        return response
    part = part or range(file.size)
    response = download(request, file.path, file.pieces(part.start, len(part)), len(part), media_type)
    if response.streaming:
        del response["Content-Disposition"]
        response["Accept-Ranges"] = "bytes"
        if len(part) < file.size:
            response.status_code = 206
            response["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{file.size}"
    return response


def _asked_part(header: str, size: int) -> range | None:
    """Return the positions that a Range header asks for, empty if there are none such; None for the whole file."""
    asked = RANGE.fullmatch(header.strip())
    if asked is None or asked[1] == asked[2] == "":
        return None
    if not asked[1]:
        return range(max(0, size - int(asked[2])), size)
    last = int(asked[2]) if asked[2] else size - 1
    return range(int(asked[1]), min(last, size - 1) + 1)


def framed_response(file: StoredFile) -> HttpResponse:
    """Send HTML for a frame without scripts, forms and an origin, whose policy holds also where it is opened by itself."""
    head = file.head(MAX_FRAMED_BYTES)
    text = decode(head, complete=True)
    if kinds.kind_of(file.path, head, file.size) != "html" or file.size > MAX_FRAMED_BYTES or text is None:
        raise Http404("This is not HTML that can be shown.")
    response = HttpResponse(text.text, content_type="text/html; charset=utf-8")
    response["Content-Security-Policy"] = FRAMED
    response["X-Content-Type-Options"] = "nosniff"
    response["X-Frame-Options"] = "SAMEORIGIN"
    response["X-DNS-Prefetch-Control"] = "off"
    response["Cache-Control"] = "private, no-cache"
    return response
