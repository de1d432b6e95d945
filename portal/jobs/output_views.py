"""The page that shows an output of a job, and the images, recordings and frames in it."""

from collections.abc import Callable
from functools import partial

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from portal.jobs import outputs
from portal.jobs.downloads import visible_output
from portal.jobs.models import Output
from portal.previews import responses
from portal.previews.files import StoredFile
from portal.previews.preview import Links, preview

GONE = "The content of this file is gone."


def _file(row: Output) -> StoredFile:
    return StoredFile(row.path, row.size, row.sha256, partial(outputs.open_output, row))


@require_safe
def view_output(request: HttpRequest, pk: int, path: str) -> HttpResponse:
    """Show a file as its kind allows; ``?show=`` is one of the views of the kind."""
    row = visible_output(request, pk, path)
    addresses = {
        part: reverse(f"jobs:{name}", args=[pk, path])
        for part, name in (
            ("page", "view-output"),
            ("download", "output"),
            ("image", "image"),
            ("media", "media"),
            ("framed", "framed"),
        )
    }
    try:
        shown = preview(_file(row), Links(**addresses), request.GET.get("show", ""))
    except FileNotFoundError as error:
        raise Http404(GONE) from error
    others = Output.objects.filter(job=row.job_id).values_list("path", flat=True)
    about = {
        "job": row.job,
        "output": row,
        "preview": shown,
        "previous": others.filter(path__lt=path).order_by("-path").first(),
        "next": others.filter(path__gt=path).order_by("path").first(),
    }
    return render(request, "jobs/output.html", about)


def _part(
    request: HttpRequest, pk: int, path: str, respond: Callable[[StoredFile], HttpResponseBase]
) -> HttpResponseBase:
    row = visible_output(request, pk, path)
    try:
        return respond(_file(row))
    except FileNotFoundError as error:
        raise Http404(GONE) from error


@require_safe
def image(request: HttpRequest, pk: int, path: str) -> HttpResponseBase:
    return _part(request, pk, path, partial(responses.image_response, request))


@require_safe
def media(request: HttpRequest, pk: int, path: str) -> HttpResponseBase:
    return _part(request, pk, path, partial(responses.media_response, request))


@require_safe
def framed(request: HttpRequest, pk: int, path: str) -> HttpResponseBase:
    return _part(request, pk, path, responses.framed_response)
