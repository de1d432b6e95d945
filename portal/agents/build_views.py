"""The agents' API about environments with a recipe: claim a build, report its progress, send and fetch layers."""

import re
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from portal.agents.protocol import BadReportError, known_message, parse_storable
from portal.agents.transfers import MAX_PROGRESS_BYTES, append_piece, read_progress
from portal.agents.views import (
    AgentError,
    agent_view,
    authenticate,
    not_found,
    pieces_of,
    read_body,
    whole_number,
)
from portal.cluster.models import Node
from portal.environments import archives, builds, image_access
from portal.environments.models import Build, Environment, Lock, NodeEnvironment
from portal.environments.summary import ON_LIVE_NODE

MAX_END_BYTES = 4 * 1024 * 1024
KIND = re.compile(r"[a-z0-9][A-Za-z0-9._-]{0,119}")
DIGEST = re.compile(r"[0-9a-f]{24,64}")
SHA256 = re.compile(r"[0-9a-f]{64}")
MODULE = re.compile(r"[A-Za-z_]\w{0,99}")


def approved_node(request: HttpRequest) -> Node:
    """Return the node that sent a request, if it is approved; else answer as to one that does not exist."""
    node = authenticate(request)
    if node.approved_at is None:
        raise not_found()
    return node


def _ended() -> AgentError:
    return AgentError(409, "ended", "This build has ended: it was cancelled, or another node was given it.")


def _build(request: HttpRequest, pk: int) -> Build:
    try:
        return builds.running_build(approved_node(request), pk)
    except builds.BuildEndedError:
        raise _ended() from None


@agent_view("POST")
def claim(request: HttpRequest, key: str) -> HttpResponseBase:
    """Answer what a node of ``kind`` does to get an environment: fetch a layer, build it, or wait."""
    node = approved_node(request)
    data = parse_storable(read_body(request, MAX_PROGRESS_BYTES))
    kind, has = _matching(data, "kind", KIND), data.get("has")
    environment = Environment.objects.filter(key=key).exclude(recipe="").select_related("base").first()
    if environment is None:
        raise not_found()
    if environment.image and node.runtime != Node.Runtime.DOCKER:
        raise not_found()
    return JsonResponse(builds.claim(node, environment, kind, has if isinstance(has, str) else "").to_json())


@agent_view("POST")
def image_source(request: HttpRequest, digest: str) -> HttpResponseBase:
    """Answer where an image comes from, and how to sign in at its registry. With ``failure``, why the registry did not give it
    to this node, a node that has the image is asked to send it, if there is one (``coming``)."""
    node = approved_node(request)
    data = parse_storable(read_body(request, MAX_PROGRESS_BYTES))
    lock = Lock.objects.filter(digest=digest).first() if DIGEST.fullmatch(digest) else None
    if lock is None or not lock.is_image or node.runtime != Node.Runtime.DOCKER:
        raise not_found()
    if not image_access.may_be_pulled(lock.text):
        raise AgentError(403, "not_allowed", "This image is not allowed any more.")
    coming = "failure" in data and _request_archive(lock, node)
    return JsonResponse(
        {
            "image": lock.text,
            "content": lock.facts["content"],
            "access": image_access.access_to(lock.text),
            "bytes": lock.archive_bytes if lock.archive_sha256 else 0,
            "coming": coming,
        }
    )


def _request_archive(lock: Lock, node: Node) -> bool:
    """Note that a node cannot pull an image. Returns whether another node that has it will send it."""
    if lock.archive_sha256:
        return True
    Lock.objects.filter(pk=lock.pk).update(archive_wanted_at=timezone.now())
    lock.archive_wanted_at = timezone.now()
    others = NodeEnvironment.objects.filter(ON_LIVE_NODE, digest=lock.digest, state=NodeEnvironment.State.READY)
    return image_access.needs_archive(lock) and others.exclude(node=node).exists()


@agent_view("POST")
def progress(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Store ``{"percent", "message", "offset", "log"}``; answer how many bytes of the log there are. 409: stop building."""
    build = _build(request, pk)
    report = read_progress(request)
    try:
        size = builds.record_progress(build, report.percent, report.message, report.offset, report.log)
    except builds.BuildEndedError:
        raise _ended() from None
    return JsonResponse({"size": size})


@agent_view("PUT")
def archive(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Append a piece of the archive at ``offset``; 409 with ``size`` when the portal has another number of bytes."""
    build = _build(request, pk)
    try:
        return append_piece(request, lambda offset, pieces: builds.append_archive(build, offset, pieces))
    except builds.BuildEndedError:
        raise _ended() from None


@agent_view("POST")
def end(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Accept ``{"state": "done", "digest", "sha256", "lock", "unpacked_bytes", "modules"}``, or ``{"state": "failed",
    "message"}``."""
    build = _build(request, pk)
    data = parse_storable(read_body(request, MAX_END_BYTES))
    try:
        if data.get("state") == "failed":
            builds.fail(build, known_message(data.get("message")) or str(data.get("detail", ""))[:2000])
        else:
            builds.finish(build, _built_layer(data, is_image=bool(build.environment.image)))
    except builds.BuildEndedError:
        raise _ended() from None
    return JsonResponse({})


def _built_layer(data: dict[str, Any], *, is_image: bool) -> builds.BuiltLayer:
    lock, modules, size = data.get("lock"), data.get("modules"), data.get("unpacked_bytes")
    if not isinstance(lock, str) or len(lock) > builds.MAX_LOCK_CHARACTERS:
        raise BadReportError("lock must be a text.")
    if not isinstance(modules, list) or len(modules) > builds.MAX_MODULES or type(size) is not int or size < 0:
        raise BadReportError("modules must be a list of names, and unpacked_bytes a number.")
    names = tuple(name for name in modules if isinstance(name, str) and MODULE.fullmatch(name))
    sha256 = "" if is_image and data.get("sha256") == "" else _matching(data, "sha256", SHA256)
    facts = _image_facts(data.get("facts")) if is_image else {}
    return builds.BuiltLayer(_matching(data, "digest", DIGEST), lock, sha256, size, names, facts)


def _image_facts(data: Any) -> dict[str, str]:
    if not isinstance(data, dict):
        raise BadReportError("facts must be an object.")
    known = {name: data[name][:40] for name in ("python", "libc") if isinstance(data.get(name), str)}
    return {"content": _matching(data, "content", SHA256), **known}


def _matching(data: dict[str, Any], name: str, pattern: re.Pattern[str]) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise BadReportError(f"{name} is not understood.")
    return value


@csrf_exempt
@login_not_required
async def layer(request: HttpRequest, digest: str) -> HttpResponseBase:
    """Send the archive of a layer from ``offset`` on."""
    if request.method != "GET":
        return AgentError(405, "method", "Use GET.").response()
    try:
        path, offset, size, sha256 = await sync_to_async(_layer_path)(request, digest)
    except AgentError as error:
        return error.response()
    response = StreamingHttpResponse(pieces_of(path, offset), content_type="application/x-tar")
    response["Content-Length"] = str(size - offset)
    response["Layer-SHA256"] = sha256
    return response


def _layer_path(request: HttpRequest, digest: str) -> tuple[Path, int, int, str]:
    approved_node(request)
    offset = whole_number(request, "offset")
    locks = Lock.objects.filter(digest=digest) if DIGEST.fullmatch(digest) else Lock.objects.none()
    sha256 = locks.exclude(archive_sha256="").values_list("archive_sha256", flat=True).first()
    if sha256 is None:
        raise not_found()
    path = archives.path_of(digest)
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        # It is built again by the next node that asks.
        locks.update(archive_sha256="", archive_bytes=0)
        raise not_found() from None
    locks.update(used_at=timezone.now())
    return path, min(offset, size), size, sha256
