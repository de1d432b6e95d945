"""The agents' API by which a node finds out whether a folder of an earlier release belongs to a job.

``GET /agent/v1/containers/<name>/identity``. Agents of earlier releases stored no identity in their folders; their
records name the containers that used a folder.
"""

from django.http import HttpRequest, HttpResponseBase, JsonResponse

from portal.agents.views import agent_view, authenticate, not_found, own_container
from portal.jobs.models import Container

MAX_NAMES = 2_000


@agent_view("GET")
def identity(request: HttpRequest, name: str) -> HttpResponseBase:
    """Return when the job of a container was submitted, in Unix seconds, and the names of its latest containers."""
    node = authenticate(request)
    container = own_container(node, name)
    if node.approved_at is None:
        raise not_found()
    job = container.attempt.job
    names = Container.objects.filter(attempt__job=job).order_by("-pk").values_list("name", flat=True)
    return JsonResponse({"submitted_at": job.submitted_at.timestamp(), "containers": list(names[:MAX_NAMES])})
