"""How nodes report what they make for the portal, a build or a fetch, and send its file in pieces."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponseBase, JsonResponse

from portal.agents.protocol import BadReportError, known_message, parse_storable
from portal.agents.views import AgentError, body_pieces, content_length, read_body, whole_number
from portal.incoming import OffsetMismatchError

MAX_PROGRESS_BYTES = 512 * 1024
MAX_PIECE_BYTES = 16 * 1024 * 1024
"""Of an archive: daphne keeps the whole body of a request on its disk before the view sees it."""


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """How far something is, and the next piece of its log."""

    percent: int
    """From 0 to 100."""
    message: Any
    offset: int
    """Bytes of the log before this piece."""
    log: bytes


def read_progress(request: HttpRequest) -> ProgressReport:
    """Read ``{"percent", "message", "offset", "log"}``. Raises BadReportError."""
    data = parse_storable(read_body(request, MAX_PROGRESS_BYTES))
    percent, offset, log = data.get("percent"), data.get("offset"), data.get("log")
    if type(percent) is not int or type(offset) is not int or not isinstance(log, str):
        raise BadReportError("percent and offset must be numbers, and log a text.")
    return ProgressReport(min(max(percent, 0), 100), known_message(data.get("message")) or "", offset, log.encode())


def append_piece(request: HttpRequest, append: Callable[[int, Iterable[bytes]], int]) -> HttpResponseBase:
    """Append the body at ``?offset=``; answer the size, with 409 when the portal has another number of bytes than that."""
    if (content_length(request) or MAX_PIECE_BYTES + 1) > MAX_PIECE_BYTES:
        raise AgentError(413, "too_large", f"At most {MAX_PIECE_BYTES >> 20} MiB at once.")
    try:
        return JsonResponse({"size": append(whole_number(request, "offset"), body_pieces(request))})
    except OffsetMismatchError as error:
        return JsonResponse({"size": error.size}, status=409)
