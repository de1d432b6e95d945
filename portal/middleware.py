"""Middleware for every request.

None of it needs a thread under ASGI: a single synchronous middleware would make each waiting request (such as an agent's
long poll) occupy a thread for as long as it waits.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.contrib import messages
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.views import redirect_to_login
from django.http import (
    FileResponse,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from whitenoise.middleware import WhiteNoiseMiddleware

from portal.errors import is_program, method_not_allowed, page_before
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


class SignInRequired(LoginRequiredMiddleware):
    """Sends visitors to the sign-in page and back.

    A button is not pressed for them after they have signed in: they come back to the page that has it, and learn that.
    """

    def handle_no_permission(self, request: HttpRequest, view_func: Any) -> HttpResponseRedirect:
        if request.method in ("GET", "HEAD"):
            response: HttpResponseRedirect = super().handle_no_permission(request, view_func)
            return response
        messages.warning(request, "You were signed out, so nothing was done. Sign in, then press the button again.")
        return redirect_to_login(page_before(request), self.get_login_url(view_func))


class ExplainButtons(Middleware):
    """Shows a page where the address of a button is visited: views answer with an empty one."""

    def __call__(self, request: HttpRequest) -> Any:
        return self._handle_async(request) if self.is_async else self._explain(request, self.get_response(request))

    async def _handle_async(self, request: HttpRequest) -> HttpResponseBase:
        answer: Any = self.get_response(request)
        response: HttpResponseBase = await answer
        if not isinstance(response, HttpResponseNotAllowed):
            return response
        explained: HttpResponseBase = await sync_to_async(self._explain)(request, response)
        return explained

    def _explain(self, request: HttpRequest, response: Any) -> HttpResponseBase:
        answer: HttpResponseBase = response
        if not isinstance(answer, HttpResponseNotAllowed) or is_program(request) or answer.content:
            return answer
        page = method_not_allowed(request)
        page["Allow"] = answer["Allow"]
        return page


class NoStore(Middleware):
    """Keeps personal pages out of the caches of browsers and proxies, unless the view sets Cache-Control.

    A page is personal when it depends on a session or token.
    """

    def __call__(self, request: HttpRequest) -> Any:
        return self._handle_async(request) if self.is_async else _without_caching(request, self.get_response(request))

    async def _handle_async(self, request: HttpRequest) -> HttpResponseBase:
        answer: Any = self.get_response(request)
        response: HttpResponseBase = _without_caching(request, await answer)
        return response


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
