"""Parts of pages that are fetched again and again: sent only if they differ from what the page has, its edition."""

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

VOLATILE_HTML = re.compile(r'<time.*?</time>|name="csrfmiddlewaretoken" value="[^"]*"', re.DOTALL)
"""The texts that differ each time a page is rendered although nothing has changed."""


def render_if_changed(request: HttpRequest, template: str, context: Mapping[str, Any]) -> HttpResponse:
    """Render a part; answer 204 if its edition is still that of ``?edition=``. The template has it as ``edition``."""
    placeholder = f"edition-{secrets.token_hex(8)}"  # a text that no user's text can contain
    html = render_to_string(template, {**context, "edition": placeholder}, request)
    edition = hashlib.sha256(VOLATILE_HTML.sub("", html.replace(placeholder, "")).encode()).hexdigest()[:16]
    if request.GET.get("edition") == edition:
        return HttpResponse(status=204)
    return HttpResponse(html.replace(placeholder, edition))
