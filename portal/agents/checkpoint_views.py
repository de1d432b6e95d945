"""The agents' API about checkpoints, under ``/agent/v1/containers/<name>/checkpoints``.

A node reads and changes the checkpoints of jobs with a container on it, until that has been collected.
"""

from collections.abc import Callable

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from portal.agents.protocol import parse_storable
from portal.agents.views import (
    AgentError,
    agent_view,
    authenticate,
    body_pieces,
    content_length,
    not_found,
    own_container,
    read_body,
)
from portal.cluster.models import Node
from portal.jobs import checkpoints
from portal.jobs.models import Container, ContainerState
from portal.jobs.outputs import BadPathError, pieces
from portal.sentences import agents
from portal.streaming import stream

MAX_SET_BYTES = 4 * 1024 * 1024
View = Callable[..., HttpResponseBase]


def by_method(**views: View) -> View:
    """Return a view that calls the one for the method of the request; each of them refuses other methods."""

    @csrf_exempt
    @login_not_required
    def endpoint(request: HttpRequest, **named: str) -> HttpResponseBase:
        return views.get(request.method or "", next(iter(views.values())))(request, **named)

    return endpoint


def _uncollected_container(request: HttpRequest, name: str) -> tuple[Node, Container]:
    """Return the node and its container, which must not have been collected yet."""
    node = authenticate(request)
    container = own_container(node, name)
    if node.approved_at is None or container.collected_at is not None:
        raise not_found()
    return node, container


def _live_container(request: HttpRequest, name: str) -> tuple[Node, Container]:
    node, container = _uncollected_container(request, name)
    if container.state == ContainerState.EXITED:
        raise not_found()
    return node, container


@agent_view("GET")
def _get_set(request: HttpRequest, name: str) -> HttpResponseBase:
    """Return the set from which a container restarts; 425 while another node still has to send the latest files."""
    node, container = _live_container(request, name)
    through_portal = checkpoints.go_through_portal(node)
    if through_portal and (elsewhere := checkpoints.node_still_sending(container.attempt, node)):
        raise AgentError(425, "coming", agents.portal.CheckpointsComing(elsewhere))
    row = checkpoints.newest_set(container.attempt.job_id)
    if row and through_portal:
        checkpoints.record_start(container.attempt, row)
    found = {"version": row.version, "files": row.files} if row else {"version": 0, "files": {}}
    return JsonResponse({**found, "through_portal": through_portal})


@agent_view("POST")
def _change_set(request: HttpRequest, name: str) -> HttpResponseBase:
    """Accept ``{"changed": {path: entry}, "deleted": {path: time}}``; empty to ask only for the state."""
    node, container = _uncollected_container(request, name)
    data = parse_storable(read_body(request, MAX_SET_BYTES))
    try:
        changed = checkpoints.read_entries(data.get("changed", {}))
        deleted = checkpoints.read_deleted(data.get("deleted", {}))
        kept = checkpoints.keep(container.attempt, changed, deleted)
    except BadPathError as error:
        raise AgentError(400, "invalid", error.why) from error
    except checkpoints.BadCheckpointError as error:
        raise AgentError(400, "invalid", str(error)) from error
    except checkpoints.CheckpointsTooLargeError as error:
        raise AgentError(413, "too_large", error.why) from error
    through_portal = checkpoints.go_through_portal(node)
    return JsonResponse(
        {
            "before": kept.before,
            "version": kept.version,
            "missing": list(kept.missing),
            "outdated": kept.outdated,
            "through_portal": through_portal,
            "most_bytes": settings.MAX_CHECKPOINTS_MIB << 20,
        }
    )


@agent_view("GET")
def _get_piece(request: HttpRequest, name: str, sha256: str) -> HttpResponseBase:
    _, container = _live_container(request, name)
    try:
        file = checkpoints.open_piece(container.attempt.job, sha256)
    except FileNotFoundError:
        raise not_found() from None
    return stream(request, pieces(file), "application/octet-stream")


@agent_view("PUT")
def _put_piece(request: HttpRequest, name: str, sha256: str) -> HttpResponseBase:
    _, container = _uncollected_container(request, name)
    if (content_length(request) or 0) > checkpoints.PIECE_BYTES:
        raise AgentError(413, "too_large", f"At most {checkpoints.PIECE_BYTES >> 20} MiB at once.")
    try:
        checkpoints.store_piece(container.attempt.job, sha256, body_pieces(request))
    except checkpoints.BadCheckpointError as error:
        raise AgentError(400, "invalid", str(error)) from error
    except checkpoints.CheckpointsTooLargeError as error:
        raise AgentError(413, "too_large", error.why) from error
    return JsonResponse({}, status=201)


checkpoint_set = by_method(GET=_get_set, POST=_change_set)
checkpoint_piece = by_method(GET=_get_piece, PUT=_put_piece)
