"""Responses to errors outside the views: JSON for programs, a page with a next step for users."""

import sys

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.views.decorators.csrf import requires_csrf_token

from portal.rest import NOT_FOUND, error_response

TEXTS = {
    400: ("This request is not valid", "Go back and try again. If you followed a link, it is broken."),
    403: ("This was refused", "You may view this, but not do that. Ask an owner of the project, or an admin."),
    404: (
        "There is nothing here",
        "Or you may not see it. Check the address, or ask an owner of the project to share it.",
    ),
    405: ("This is no page", "It is the address of a button. Go to the page that has the button, and press it there."),
    500: ("Something went wrong here", "It has been logged. Try again in a moment."),
    503: ("The database is not available at the moment", "Try again in a moment."),
}
RETRY_AFTER_SECONDS = 5
"""When a program may try again while the database is unavailable."""
STALE_FORM_ADVICE = "The form had expired or came from another site. Reload the page and send it again."


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _error_response(request, 400)


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _error_response(request, 403)


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _error_response(request, 404)


def method_not_allowed(request: HttpRequest) -> HttpResponse:
    """Answer a visit to the address of a button, which a browser shows again after a sign-in or from its history."""
    return _error_response(request, 405)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    return _error_response(request, 403, STALE_FORM_ADVICE)


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer an error of a view. The page uses nothing of the request, such as the user: the database may be the cause.

    Django calls this while it handles the error. When the database is unavailable, restarts or is overloaded, trying
    again helps: the status is 503, for all other errors 500.
    """
    status = 503 if isinstance(sys.exc_info()[1], OperationalError | InterfaceError) else 500
    if is_program(request):
        answer: HttpResponse = _json(status)
    else:
        answer = HttpResponse(render_to_string("500.html", {"away": status == 503}), status=status)
    if status == 503:
        answer["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return answer


@requires_csrf_token
def _error_response(request: HttpRequest, status: int, advice: str = "") -> HttpResponse:
    if is_program(request):
        return _json(status)
    title, text = TEXTS[status]
    return render(request, "error.html", {"title": title, "advice": advice or text}, status=status)


def is_program(request: HttpRequest) -> bool:
    return request.path.startswith(("/api/", "/agent/"))


def _json(status: int) -> JsonResponse:
    return error_response(status, NOT_FOUND if status == 404 else TEXTS[status][0] + ".")
