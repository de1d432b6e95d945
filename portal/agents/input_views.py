"""The agents' API about inputs, the outputs of an earlier job: ``/agent/v1/containers/<name>/inputs``.

A node reads them for containers that it prepares, of jobs that use the outputs of another one.
"""

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase, JsonResponse

from portal.agents.views import AgentError, agent_view, authenticate, not_found, own_container
from portal.jobs.models import ContainerState, Job, Output
from portal.jobs.outputs import open_output, pieces, that_fit_together
from portal.sentences import agents
from portal.streaming import stream


def _inputs(request: HttpRequest, name: str) -> QuerySet[Output]:
    """Return the inputs of a container of this node that has not ended."""
    node = authenticate(request)
    container = own_container(node, name)
    job = Job.objects.only("after", "use_outputs").get(pk=container.attempt.job_id)
    if node.approved_at is None or container.state == ContainerState.EXITED or not job.use_outputs:
        raise not_found()
    return Output.objects.filter(job=job.after_id).select_related("job").order_by("path")


@agent_view("GET")
def input_list(request: HttpRequest, name: str) -> HttpResponseBase:
    """Return all files: ``{"files": [{"path", "size", "sha256"}]}``."""
    rows = that_fit_together(_inputs(request, name))
    return JsonResponse({"files": [{"path": row.path, "size": row.size, "sha256": row.sha256} for row in rows]})


@agent_view("GET")
def input_file(request: HttpRequest, name: str, sha256: str) -> HttpResponseBase:
    """Send the content of a file."""
    row = _inputs(request, name).filter(sha256=sha256[:64]).first()
    if row is None:
        raise not_found()
    try:
        return stream(request, pieces(open_output(row)), "application/octet-stream")
    except FileNotFoundError as error:
        raise AgentError(404, "input_lost", agents.portal.InputLost(row.job_id, row.path)) from error
