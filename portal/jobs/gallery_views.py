"""The button of the gallery: uploads an example to the user's project and submits its job."""

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from portal.accounts.permissions import signed_in
from portal.jobs.gallery import run_example
from portal.projects import examples
from portal.refused import Refused


@require_POST
def run(request: HttpRequest, key: str) -> HttpResponse:
    example = examples.find(key)
    if example is None:
        raise Http404
    try:
        job = run_example(signed_in(request), example)
    except Refused as refusal:
        messages.error(request, refusal.message)
        return redirect("projects:gallery")
    return redirect("jobs:detail", job.pk)
