"""Parts of pages that are fetched again and again: sent only if they differ from what the page has, its edition."""

import hashlib
import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse

VOLATILE_HTML = re.compile(r'<time.*?</time>|name="csrfmiddlewaretoken" value="[^"]*"', re.DOTALL)
"""The texts that differ each time a page is rendered although nothing has changed."""
LIVE = b"data-live="
"""What a part has that is fetched when the live connection hints at it."""


def only_if_changed(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Return the response to htmx with its edition; 204 if the request names that one as what the page has."""
    if "HX-Request" not in request.headers or response.status_code != 200:
        return response
    html = VOLATILE_HTML.sub("", response.content.decode())
    response["Edition"] = hashlib.sha256(html.encode()).hexdigest()[:16]
    return HttpResponse(status=204) if request.headers.get("Edition") == response["Edition"] else response


def sent_if_changed(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Send a part of a page only if it has changed: ``live.js`` names the edition that the page has.

    A page from before the portal was updated names none. Its parts fetched themselves by a timer, and those of now do not:
    it is loaded again.
    """

    @wraps(view)
    def shown(request: HttpRequest, *args: Any, **named: Any) -> HttpResponse:
        response = view(request, *args, **named)
        is_old_page = "HX-Request" in request.headers and "Edition" not in request.headers
        if is_old_page and LIVE in response.content:
            return HttpResponse(status=204, headers={"HX-Refresh": "true"})
        return only_if_changed(request, response)

    return shown
