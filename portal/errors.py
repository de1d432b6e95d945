"""Responses to errors outside the views: JSON for programs, a page with a next step for users."""

import errno
import re
import sys
from urllib.parse import urlencode, urlsplit

from django.conf import settings
from django.contrib import messages
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import is_valid_path, reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.csrf import requires_csrf_token

from portal.rest import NOT_FOUND, error_response

TEXTS = {
    400: ("This request is not valid", "Go back and try again. If you followed a link, it is broken."),
    403: ("This was refused", "You may view this, but not do that. Ask an owner of the project, or an admin."),
    404: (
        "Page not found",
        "It does not exist, or you are not allowed to see it. Check the address, or ask an owner of the project to share it.",
    ),
    405: (
        "This is not a page",
        "It is the address of a button. Go to the page that has the button, and press it there.",
    ),
    500: ("Something went wrong here", "It has been logged. Try again in a moment."),
    503: ("The database is not available at the moment", "Try again in a moment."),
    507: ("The disk of the portal is full", "Nothing was saved. Ask an admin to make room, then try again."),
}
FULL = re.compile(r"disk is full|No space left on device|Disk quota exceeded")
"""In the errors of SQLite and PostgreSQL."""
RETRY_AFTER_SECONDS = 5
"""When a program may try again while the database is unavailable."""
STALE_FORM = (
    "This form had expired",
    "Nothing was saved, because you have signed in again since you opened it, or it came from another site. Open the form "
    "again and submit it: this tab restores what you had typed in the longer forms.",
)
STALE_SIGN_IN = "This page had expired. Sign in here."


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _error_response(request, 400)


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _error_response(request, 403)


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _error_response(request, 404)


def method_not_allowed(request: HttpRequest) -> HttpResponse:
    """Answer a visit to the address of a button, which a browser shows again after a sign-in or from its history."""
    return _error_response(request, 405, back=page_above(request.path))


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Lead back to the form, which gets a new token and what was typed.

    A sign-in page that was open in two tabs has expired in the second one once the first was used: it continues.
    """
    sign_in = reverse("accounts:sign-in")
    if request.path == sign_in and settings.CSRF_COOKIE_NAME in request.COOKIES:
        if not request.user.is_authenticated:
            messages.warning(request, STALE_SIGN_IN)
        return redirect(f"{sign_in}?{urlencode({'next': request.POST.get('next', '')})}")
    return _error_response(request, 403, STALE_FORM, back=page_before(request))


def page_before(request: HttpRequest) -> str:
    """Return the path of the page of this portal from which a request came; the first page if that is not known."""
    page = urlsplit(request.headers.get("Referer", ""))
    path = page.path + (f"?{page.query}" if page.query else "")
    # a path such as //example.org leads elsewhere
    is_here = page.netloc == request.get_host() and url_has_allowed_host_and_scheme(path, allowed_hosts=None)
    return path if is_here and path.startswith("/") else "/"


def page_above(path: str) -> str:
    """Return the page above the address of a button, which has the button. Pages with others below them end in a slash."""
    parts = path.strip("/").split("/")
    for length in range(len(parts) - 1, 0, -1):
        above = "/".join(["", *parts[:length], ""])
        if is_valid_path(above):
            return above
    return "/"


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer an error of a view. The page uses nothing of the request, such as the user: the database may be the cause.

    Django calls this while it handles the error.
    """
    status = _status_of(sys.exc_info()[1])
    if is_program(request):
        answer: HttpResponse = _json(status)
    else:
        answer = HttpResponse(render_to_string("500.html", {"status": status}), status=status)
    if status == 503:
        answer["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return answer


def _status_of(error: BaseException | None) -> int:
    """Return 507 where a disk is full, and 503 when the database is unavailable, restarts or is overloaded: trying again helps."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return 507
    if isinstance(error, OperationalError) and FULL.search(str(error)):
        return 507
    return 503 if isinstance(error, OperationalError | InterfaceError) else 500


@requires_csrf_token
def _error_response(
    request: HttpRequest, status: int, texts: tuple[str, str] | None = None, back: str = "/"
) -> HttpResponse:
    if is_program(request):
        return _json(status)
    title, advice = texts or TEXTS[status]
    return render(request, "error.html", {"title": title, "advice": advice, "back": back}, status=status)


def is_program(request: HttpRequest) -> bool:
    return request.path.startswith(("/api/", "/agent/"))


def _json(status: int) -> JsonResponse:
    return error_response(status, NOT_FOUND if status == 404 else TEXTS[status][0] + ".")
