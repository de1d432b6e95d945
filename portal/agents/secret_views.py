"""The agents' API about secrets: ``/agent/v1/containers/<name>/secrets``.

A node asks for them when it prepares a container. Their values are in this answer only, and it is for no cache and no log.
"""

from django.http import HttpRequest, HttpResponseBase, JsonResponse

from portal.agents.views import agent_view, authenticate, not_found, own_container
from portal.jobs import job_secrets
from portal.jobs.models import Container, ContainerState, Job


@agent_view("GET")
def secret_list(request: HttpRequest, name: str) -> HttpResponseBase:
    """Return the secrets of a container of this node that has not ended: ``{"secrets": [{"name", "kind", "value"}]}``."""
    node = authenticate(request)
    container = own_container(node, name)
    has_ranks = container.role == Container.Role.HOST
    if node.approved_at is None or container.state == ContainerState.EXITED or not has_ranks:
        raise not_found()
    job = Job.objects.select_related("submitted_by", "project").get(pk=container.attempt.job_id)
    return JsonResponse(
        {"secrets": job_secrets.values(job, container.spec.get("secrets", []))}, headers={"Cache-Control": "no-store"}
    )
