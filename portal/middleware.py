"""Middleware for every request.

None of it needs a thread under ASGI: a single synchronous middleware would make each waiting request (such as an agent's
long poll) occupy a thread for as long as it waits.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseBase
from whitenoise.middleware import WhiteNoiseMiddleware

from portal.errors import is_program
from portal.rest import error_response
from portal.streaming import in_threads

Answer = HttpResponseBase | Awaitable[HttpResponseBase]
GetResponse = Callable[[HttpRequest], Answer]


async def _as_coroutine(response: HttpResponseBase) -> HttpResponseBase:
    return response


async def _stream_in_threads(response: FileResponse) -> HttpResponseBase:
    """Read the file in threads: Django would read it as a whole, with a warning on the terminal."""
    response.streaming_content = in_threads(iter(response))
    return response


class Middleware(ABC):
    """Middleware for WSGI and ASGI; ``is_async`` is true under ASGI."""

    sync_capable = async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    @abstractmethod
    def __call__(self, request: HttpRequest) -> Any:
        """Answer the request, or pass it to the next middleware."""


class RefuseNul(Middleware):
    """Refuses addresses with a NUL. PostgreSQL rejects NUL in text, so views that search would answer 500."""

    def __call__(self, request: HttpRequest) -> Answer:
        if refusal := nul_refusal(request):
            return _as_coroutine(refusal) if self.is_async else refusal
        return self.get_response(request)


def nul_refusal(request: HttpRequest) -> HttpResponse | None:
    """Return the refusal of an address with a NUL, None for any other address."""
    if "\0" not in request.path and "%00" not in request.META.get("QUERY_STRING", ""):
        return None
    text = "An address cannot contain a NUL character."
    if is_program(request):
        return error_response(400, text)
    return HttpResponse(text, status=400, content_type="text/plain")


class NoStore(Middleware):
    """Keeps personal pages out of the caches of browsers and proxies, unless the view sets Cache-Control.

    A page is personal when it depends on a session or token.
    """

    def __call__(self, request: HttpRequest) -> Any:
        return self._handle_async(request) if self.is_async else _without_caching(request, self.get_response(request))

    async def _handle_async(self, request: HttpRequest) -> HttpResponseBase:
        answer: Any = self.get_response(request)
        return _without_caching(request, await answer)


def _without_caching(request: HttpRequest, response: Any) -> Any:
    session = getattr(request, "session", None)
    personal = session is not None and (session.accessed or request.headers.get("Authorization"))
    if personal and not response.has_header("Cache-Control"):
        response["Cache-Control"] = "private, no-store"
    return response


class StaticFiles(WhiteNoiseMiddleware):
    """WhiteNoise for WSGI and ASGI; it lists its files at start."""

    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        super().__init__(get_response)
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        path = request.path_info
        file = self.find_file(path) if self.autorefresh else self.files.get(path)
        if file is None:
            return self.get_response(request)
        response = self.serve(file, request)
        return _stream_in_threads(response) if self.is_async else response
