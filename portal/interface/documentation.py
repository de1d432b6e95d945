"""The documentation, which ``make docs`` builds from docs/, at /help/. Everyone may read it, signed in or not."""

import mimetypes
from pathlib import Path

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import SuspiciousFileOperation
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils._os import safe_join
from django.utils.cache import get_conditional_response
from django.utils.http import quote_etag
from django.views.decorators.http import require_safe

INDEX = "index.html"


@login_not_required
@require_safe
def documentation(request: HttpRequest, path: str = "") -> HttpResponseBase:
    """Send a page of the documentation or a file that it uses; what is wrong with the address is a plain 404."""
    site: Path = settings.DOCUMENTATION
    if not (site / INDEX).is_file():
        return render(request, "interface/no_help.html", status=404)
    try:
        file = _file_at(site.resolve(), path)
        if file.is_dir() and path and not path.endswith("/"):
            return redirect(f"{request.path}/")
        if file.is_dir():
            file /= INDEX
        elif path.endswith("/") or not file.is_file():
            raise FileNotFoundError
        content, about = file.read_bytes(), file.stat()
    except OSError:  # also a name that is longer than file systems allow
        raise Http404("There is no such page of the documentation.") from None
    response = HttpResponse(content, content_type=_content_type(file))
    response["ETag"] = quote_etag(f"{about.st_mtime_ns:x}-{about.st_size:x}")
    response["Cache-Control"] = "no-cache"
    return get_conditional_response(request, etag=response["ETag"], response=response) or response


def _file_at(site: Path, path: str) -> Path:
    """Return what an address below /help/ names. Raises Http404 for what is outside of the site, or leads there by a link."""
    try:
        file = Path(safe_join(site, path))
    except (SuspiciousFileOperation, ValueError):
        raise Http404("There is no such page of the documentation.") from None
    if file.resolve() != file or any(part.startswith(".") for part in file.relative_to(site).parts):
        raise Http404("There is no such page of the documentation.")
    return file


def _content_type(file: Path) -> str:
    found = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return f"{found}; charset=utf-8" if found.startswith("text/") else found
