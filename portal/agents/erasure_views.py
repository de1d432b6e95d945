"""The agents' API about jobs that are gone: ``POST /agent/v1/erased-jobs``."""

import uuid
from contextlib import suppress
from typing import Any

from django.http import HttpRequest, HttpResponseBase, JsonResponse

from portal.agents.protocol import BadReportError, parse_storable
from portal.agents.views import agent_view, authenticate, read_body
from portal.jobs.models import Job

MAX_BYTES = 64 * 1024
MAX_JOBS = 200


@agent_view("POST")
def erased_jobs(request: HttpRequest) -> HttpResponseBase:
    """Answer ``{"jobs": [uid, ...]}`` with those of them that were erased and had containers on this node: ``{"erased": [...]}``."""
    node = authenticate(request)
    uids = read_uids(parse_storable(read_body(request, MAX_BYTES)))
    rows = Job.objects.filter(uid__in=list(uids), erased_at__isnull=False, attempts__containers__node=node)
    return JsonResponse({"erased": [uids[uid] for uid in rows.values_list("uid", flat=True).distinct()]})


def read_uids(data: dict[str, Any]) -> dict[uuid.UUID, str]:
    """Return the uids of a request, each with its text there; what is none is left out. Raises BadReportError."""
    found = data.get("jobs")
    if not isinstance(found, list) or len(found) > MAX_JOBS or not all(isinstance(each, str) for each in found):
        raise BadReportError(f"jobs must be a list of at most {MAX_JOBS} texts.")
    uids = {}
    for each in found:
        with suppress(ValueError):
            uids[uuid.UUID(each)] = each
    return uids
