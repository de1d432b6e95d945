"""What a node may know of a job, to find out whether a folder of an earlier release is this job's.

``GET /agent/v1/containers/<name>/identity``. Agents of earlier releases left no identity in the folders they made; their
notes name the containers that used one.
"""

from django.http import HttpRequest, HttpResponseBase, JsonResponse

from portal.agents.views import agent_view, authenticated, not_found, own_container
from portal.jobs.models import Container

MAX_NAMES = 2_000


@agent_view("GET")
def identity(request: HttpRequest, name: str) -> HttpResponseBase:
    """When the container's job was submitted, in Unix seconds, and the names of its latest containers on all nodes."""
    node = authenticated(request)
    container = own_container(node, name)
    if node.approved_at is None:
        raise not_found()
    job = container.attempt.job
    names = Container.objects.filter(attempt__job=job).order_by("-pk").values_list("name", flat=True)
    return JsonResponse({"submitted_at": job.submitted_at.timestamp(), "containers": list(names[:MAX_NAMES])})
