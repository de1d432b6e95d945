"""The API for agents, ``/agent/v1/`` (docs/architecture/agent-protocol.md).

A node authenticates with its token and sees only its own containers. Every request may be repeated.
"""

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.http.request import UnreadablePostError
from django.views.decorators.csrf import csrf_exempt

from portal.accounts.models import digest
from portal.agents import sync as agent_sync
from portal.agents.known_tokens import known_tokens
from portal.agents.protocol import CONTAINER_NAME, BadReportError, parse_json, parse_storable, read_join, read_marks
from portal.cluster import services as cluster
from portal.cluster.models import Node
from portal.disks import has_reserve
from portal.jobs import log_watchers, logs, outputs
from portal.jobs.models import Container, ContainerState
from portal.projects import store
from portal.refused import Refused
from portal.sentences import agents
from portal.wake import NotificationHub, node_channel

logger = logging.getLogger(__name__)

MAX_JOIN_BYTES = 128 * 1024
MAX_SYNC_BYTES = 2 * 1024 * 1024
MAX_LOG_BYTES = 1024 * 1024
MAX_OFFSET = 1 << 50
WAIT_SECONDS = 45.0
"""Proxies commonly give up after 50 s or 60 s. A lost notification costs little: a node gets the desired state in each
answer to its reports."""
PIECE_BYTES = 256 * 1024

View = Callable[..., HttpResponseBase]
ThreadRunner = Callable[[Callable[..., Any]], Callable[..., Awaitable[Any]]]


class AgentError(Exception):
    """An error response: ``{"error": {"code", "message"}}``.

    A message is also sent as data, the ``reason``, which the agent reports to users; agents of an earlier release report its
    text.
    """

    def __init__(self, status: int, code: str, message: agents.Message | str) -> None:
        super().__init__(message.text if isinstance(message, agents.Message) else message)
        self.status, self.code = status, code
        self.reason = message.data() if isinstance(message, agents.Message) else None

    def response(self) -> JsonResponse:
        error: dict[str, Any] = {"code": self.code, "message": str(self)}
        if self.reason is not None:
            error["reason"] = self.reason
        response = JsonResponse({"error": error}, status=self.status)
        if self.status == 401:
            response["WWW-Authenticate"] = "Bearer"
        return response


def not_found() -> AgentError:
    """Return a new exception: one that is raised several times keeps all its tracebacks."""
    return AgentError(404, "not_found", "This node has no such thing.")


def unknown_token() -> AgentError:
    return AgentError(401, "token", "This node's token is unknown or was revoked. Join again with a new join token.")


def agent_view(method: str) -> Callable[[View], View]:
    """Decorate an endpoint for agents: one method, no cookies, errors as JSON."""

    def decorate(view: View) -> View:
        @csrf_exempt
        @login_not_required
        @functools.wraps(view)
        def endpoint(request: HttpRequest, **named: Any) -> HttpResponseBase:
            try:
                if request.method != method:
                    raise AgentError(405, "method", f"Use {method}.")
                return view(request, **named)
            except AgentError as error:
                return error.response()
            except (BadReportError, UnreadablePostError) as error:
                return AgentError(400, "invalid", str(error) or "The body could not be read.").response()
            except Refused as error:
                return AgentError(403, "refused", str(error)).response()

        return endpoint

    return decorate


def authenticate(request: HttpRequest) -> Node:
    node = cluster.node_for(_token(request))
    if node is None:
        raise unknown_token()
    return node


def known_node_id(request: HttpRequest) -> int:
    """Return the id of the node whose token the request has, valid or revoked, without a query; for frequent requests."""
    token_digest = digest(_token(request))
    node = known_tokens.node_of(token_digest)
    if node is None:
        node = authenticate(request).pk
        known_tokens.add(token_digest, node)
    return node


def has_shown_token(authorization: str) -> bool:
    """Return whether a node has reported with this header since the process started. Nodes report every few seconds."""
    scheme, _, token = authorization.partition(" ")
    return scheme.lower() == "bearer" and digest(token.strip()) in known_tokens


def _call_with_token(work: Callable[..., dict[str, Any]], token_digest: str, *args: Any) -> dict[str, Any]:
    try:
        return work(token_digest, *args)
    except agent_sync.UnknownTokenError:
        known_tokens.forget(token_digest)
        raise unknown_token() from None


def _token(request: HttpRequest) -> str:
    """Return the token of a request; empty without one, which no node has."""
    scheme, _, token = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def read_body(request: HttpRequest, max_bytes: int) -> bytes:
    too_large = AgentError(413, "too_large", f"At most {max_bytes >> 10} KiB at once.")
    if (content_length(request) or 0) > max_bytes:
        raise too_large
    try:
        body = request.body
    except RequestDataTooBig as error:
        raise too_large from error
    if len(body) > max_bytes:
        raise too_large
    return body


def content_length(request: HttpRequest) -> int | None:
    length = request.META.get("CONTENT_LENGTH", "")
    return int(length) if length.isascii() and length.isdecimal() and len(length) < 19 else None


def own_container(node: Node, name: str) -> Container:
    rows = (
        Container.objects.filter(node=node, name=name) if CONTAINER_NAME.fullmatch(name) else Container.objects.none()
    )
    container = rows.select_related("attempt").defer("spec").first()
    if container is None:
        raise not_found()
    return container


# --- joining and reporting ---------------------------------------------------------------------------------------


@agent_view("POST")
def join(request: HttpRequest) -> HttpResponseBase:
    asked = read_join(parse_storable(read_body(request, MAX_JOIN_BYTES)))
    joined = cluster.join(asked.join_token, asked.name, asked.runtime, asked.facts, asked.problems)
    return JsonResponse({"node": joined.node.pk, "token": joined.token}, status=201)


@agent_view("POST")
def sync(request: HttpRequest) -> HttpResponseBase:
    known_node_id(request)  # before the report is read
    data = parse_json(read_body(request, MAX_SYNC_BYTES))
    return JsonResponse(_call_with_token(agent_sync.answer_report, digest(_token(request)), data))


@agent_view("POST")
def new_token(request: HttpRequest) -> HttpResponseBase:
    """Give an agent that was asked to ``rotate`` a new token. The old one still works if the response is lost."""
    response = JsonResponse({"token": cluster.issue_requested_token(authenticate(request))}, status=201)
    response["Cache-Control"] = "no-store"
    return response


@csrf_exempt
@login_not_required
async def wait(request: HttpRequest, run: ThreadRunner = sync_to_async) -> HttpResponseBase:
    """Respond when the desired state differs from ``seen``, or after 45 s. ``run`` calls functions that use the database."""
    if request.method != "GET":
        return AgentError(405, "method", "Use GET.").response()
    seen = request.GET.get("seen", "")
    until = time.monotonic() + WAIT_SECONDS
    try:
        token_digest = digest(_token(request))
        node_id = known_tokens.node_of(token_digest) or await run(known_node_id)(request)
        with NotificationHub.current().subscribe(node_channel(node_id)) as notified:
            while True:
                notified.clear()
                now_seen = await run(_desired_digest)(token_digest)  # it may have been approved or removed
                if now_seen != seen:
                    return JsonResponse({"seen": now_seen})
                try:
                    await asyncio.wait_for(notified.wait(), until - time.monotonic())
                except TimeoutError:
                    return JsonResponse({"seen": seen})
    except AgentError as error:
        return error.response()


def _desired_digest(token_digest: str) -> str:
    return str(_call_with_token(agent_sync.desired_state, token_digest)["seen"])


# --- code, logs, outputs -----------------------------------------------------------------------------------------


@csrf_exempt
@login_not_required
async def code(request: HttpRequest, sha256: str) -> HttpResponseBase:
    """Send the tar of a code version to a node that runs it."""
    if request.method != "GET":
        return AgentError(405, "method", "Use GET.").response()
    try:
        path, size = await sync_to_async(_code_path)(request, sha256)
    except AgentError as error:
        return error.response()
    response = StreamingHttpResponse(pieces_of(path), content_type="application/x-tar")
    response["Content-Length"] = str(size)
    return response


def _code_path(request: HttpRequest, sha256: str) -> tuple[Path, int]:
    node = authenticate(request)
    live = Container.objects.filter(node=node, node__approved_at__isnull=False).exclude(state=ContainerState.EXITED)
    if len(sha256) > 64 or not live.filter(attempt__job__code__sha256=sha256).exists():
        raise not_found()
    path = store.path_of(sha256)
    try:
        return path, path.stat().st_size
    except FileNotFoundError as error:
        logger.error("the code %s is in the database but not in %s", sha256, path.parent)
        raise AgentError(404, "code_lost", agents.portal.CodeLost()) from error


async def pieces_of(path: Path, offset: int = 0) -> AsyncIterator[bytes]:
    """Yield what a file has from ``offset`` on."""
    with await asyncio.to_thread(path.open, "rb") as file:
        file.seek(offset)
        while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
            yield piece


@agent_view("POST")
def append_log(request: HttpRequest, name: str, stream: str) -> HttpResponseBase:
    container = own_container(authenticate(request), name)
    offset = whole_number(request, "offset")
    label = request.GET.get("label", "").replace("\0", "").encode(errors="replace").decode()
    data = read_body(request, MAX_LOG_BYTES)
    require_reserve("logs", len(data))
    try:
        row = logs.open_stream(container, stream, label)
        size = logs.append(
            row, offset, data, read_marks(request.headers.get("Marks", "")), final=request.GET.get("final") == "1"
        )
    except logs.OffsetMismatchError as error:
        return JsonResponse({"size": error.size}, status=409)
    except ValueError as error:
        raise AgentError(400, "invalid", str(error)) from error
    return JsonResponse({"size": size, "watched": log_watchers.is_watched(container.attempt.job_id)})


@csrf_exempt
@login_not_required
def output(request: HttpRequest, name: str, path: str) -> HttpResponseBase:
    return (_check_output if request.method == "POST" else _put_output)(request, name=name, path=path)


@agent_view("PUT")
def _put_output(request: HttpRequest, name: str, path: str) -> HttpResponseBase:
    container = own_container(authenticate(request), name)
    require_reserve("outputs", content_length(request) or 0)
    with _output_refusals():
        outputs.store(container.attempt, path, body_pieces(request), content_length(request))
    return JsonResponse({}, status=201)


@agent_view("POST")
def _check_output(request: HttpRequest, name: str, path: str) -> HttpResponseBase:
    """Check whether a file of ``size`` bytes would be kept, before a large one is sent."""
    container = own_container(authenticate(request), name)
    with _output_refusals():
        outputs.check_room(container.attempt, path, whole_number(request, "size"))
    return JsonResponse({})


def require_reserve(folder: str, more: int) -> None:
    """Let a node keep what it sends, and try again, while the disk is full."""
    if not has_reserve(folder, more):
        raise AgentError(507, "full", "The disk of the portal is full: this waits on the node until there is room.")


@contextmanager
def _output_refusals() -> Iterator[None]:
    try:
        yield
    except outputs.BadPathError as error:
        raise AgentError(400, "invalid", error.why) from error
    except outputs.OutputsTooLargeError as error:
        raise AgentError(413, "too_large", error.why) from error


def whole_number(request: HttpRequest, name: str) -> int:
    """Return a number of bytes from the address."""
    value = request.GET.get(name, "")
    if not (value.isascii() and value.isdecimal() and len(value) < 19 and int(value) <= MAX_OFFSET):
        raise AgentError(400, "invalid", f"{name} must be a whole number of bytes.")
    return int(value)


def body_pieces(request: HttpRequest) -> Iterator[bytes]:
    while piece := request.read(PIECE_BYTES):
        yield piece
