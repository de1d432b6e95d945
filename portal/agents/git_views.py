"""The agents' API about commits that are fetched from Git: claim a fetch, report its progress, send its files."""

from django.http import HttpRequest, HttpResponseBase, JsonResponse

from portal.agents.build_views import approved_node
from portal.agents.protocol import BadReportError, known_message, parse_storable
from portal.agents.transfers import MAX_PROGRESS_BYTES, append_piece, read_progress
from portal.agents.views import AgentError, agent_view, read_body
from portal.projects.git import fetches
from portal.projects.git.models import GitFetch


def _ended() -> AgentError:
    return AgentError(409, "ended", "This fetch has ended: it was cancelled, replaced, or another node was given it.")


def _fetch(request: HttpRequest, pk: int) -> GitFetch:
    try:
        return fetches.running_fetch(approved_node(request), pk)
    except fetches.FetchEndedError:
        raise _ended() from None


@agent_view("POST")
def claim(request: HttpRequest) -> HttpResponseBase:
    """Answer what a node fetches next, with how to sign in; an empty object if nothing waits. ``{"ssh", "lfs"}``: what it has."""
    node = approved_node(request)
    data = parse_storable(read_body(request, MAX_PROGRESS_BYTES))
    found = fetches.claim(node, ssh=data.get("ssh") is True)
    return JsonResponse(found.order if found else {})


@agent_view("POST")
def progress(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Store ``{"percent", "message", "offset", "log"}``; answer how many bytes of the log there are. 409: stop."""
    fetch = _fetch(request, pk)
    report = read_progress(request)
    try:
        size = fetches.record_progress(fetch, report.percent, report.message, report.offset, report.log)
    except fetches.FetchEndedError:
        raise _ended() from None
    return JsonResponse({"size": size})


@agent_view("PUT")
def archive(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Append a piece of the archive at ``offset``; 409 with ``size`` when the portal has another number of bytes."""
    fetch = _fetch(request, pk)
    try:
        return append_piece(request, lambda offset, pieces: fetches.append_code(fetch, offset, pieces))
    except fetches.FetchEndedError:
        raise _ended() from None


@agent_view("POST")
def end(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Accept ``{"state": "done", "commit", "author", "subject", "committed_at" ...}``, ``{"state": "unchanged", "commit"}``, or
    ``{"state": "failed", "message", "host_key"}``. The files of a commit are judged now, as those of an upload."""
    fetch = _fetch(request, pk)
    data = parse_storable(read_body(request, MAX_PROGRESS_BYTES))
    try:
        if data.get("state") == "failed":
            message = known_message(data.get("message")) or str(data.get("detail", ""))[:2000]
            host_key = data.get("host_key")
            fetches.fail(fetch, message, host_key if isinstance(host_key, str) else "")
        elif data.get("state") == "unchanged":
            fetches.finish_unchanged(fetch, fetches.details_of(data).commit)
        else:
            fetches.finish(fetch, fetches.details_of(data))
    except fetches.FetchEndedError:
        raise _ended() from None
    except ValueError as error:
        raise BadReportError(str(error)) from error
    return JsonResponse({})
