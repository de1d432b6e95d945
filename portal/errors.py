"""Answers to what went wrong outside the views: JSON for programs, a page with a next step for people."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.csrf import requires_csrf_token

from portal.rest import NOT_FOUND, error_response

TEXTS = {
    400: ("This request makes no sense to us", "Go back and try again. If a link brought you here, it is broken."),
    403: ("This was refused", "You may look here, but not do that. Ask an owner of the project, or an admin."),
    404: (
        "There is nothing here",
        "Or you may not see it. Check the address, or ask an owner of the project to share it.",
    ),
    500: ("Something broke on our side", "It is written down for the admin. Try again in a moment."),
}
STALE = "The form was too old or came from another site. Load the page again and send it once more."


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _answer(request, 400)


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _answer(request, 403)


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _answer(request, 404)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    return _answer(request, 403, STALE)


def server_error(request: HttpRequest) -> HttpResponse:
    """Plain on purpose: the database may be what is broken, so nobody's name and no banner."""
    if _is_program(request):
        return _json(request, 500)
    return HttpResponse(_plain_page(), status=500)


def _plain_page() -> str:
    title, advice = TEXTS[500]
    return f'<!doctype html><html lang="en"><title>{title}</title><h1>{title}</h1><p>{advice}</p><p><a href="/">Home</a></p>'


@requires_csrf_token
def _answer(request: HttpRequest, status: int, advice: str = "") -> HttpResponse:
    if _is_program(request):
        return _json(request, status)
    title, text = TEXTS[status]
    return render(request, "error.html", {"title": title, "advice": advice or text}, status=status)


def _is_program(request: HttpRequest) -> bool:
    return request.path.startswith(("/api/", "/agent/"))


def _json(request: HttpRequest, status: int) -> JsonResponse:
    return error_response(request, status, NOT_FOUND if status == 404 else TEXTS[status][0] + ".")
