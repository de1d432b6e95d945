"""The webhook of a project: a push to its branch requests a fetch.

The hosts sign in different ways: GitHub, Gitea, Forgejo and Bitbucket send an HMAC-SHA256 of the body, GitLab sends the secret itself.
A request only means that something has changed. What is fetched is what the branch has then, so repeating one is harmless.
"""

import hashlib
import hmac
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt

from portal.addresses import counted_address
from portal.projects.git import fetches, keys
from portal.projects.git.models import GitFetch, GitSource
from portal.refused import Refused
from portal.rest import STATUS_OF

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_PER_MINUTE = 30
"""Pushes to the bound branch of a project, and refused requests from an address."""
MINUTE = 60
SIGNATURES = (
    "X-Hub-Signature-256",
    "X-Gitea-Signature",
    "X-Forgejo-Signature",
    "X-Hub-Signature",
    "X-Signature-256",
)
"""Headers with an HMAC of the body, of which some begin with ``sha256=``."""
EVENTS = ("X-GitHub-Event", "X-Gitea-Event", "X-Forgejo-Event", "X-Gitlab-Event", "X-Event-Key")
PUSHES = frozenset({"push", "push hook", "system hook", "repo:push", ""})
HEADS = "refs/heads/"


@dataclass(frozen=True, slots=True)
class Push:
    """What a request reports."""

    commits: Mapping[str, str] = field(default_factory=dict)
    """The new commit of each branch that was pushed; empty where the request does not name it."""
    ignored: str = ""
    """Why nothing is done; empty if it is a push to a branch."""


def url_of(source: GitSource) -> str:
    """Return the address that the Git host calls: the portal's own, not the one under which an owner reads the page."""
    return f"{settings.SITE_URL.rstrip('/')}{reverse('projects:git-hook', args=[source.hook])}"


def is_signed(headers: Mapping[str, str], body: bytes, secret: str) -> bool:
    """Return whether a request has the secret, or a signature made with it."""
    token = headers.get("X-Gitlab-Token")
    if token is not None:
        return hmac.compare_digest(token.encode(), secret.encode())
    expected = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    given = (headers.get(name) for name in SIGNATURES)
    return any(
        hmac.compare_digest(each.removeprefix("sha256=").lower().encode(), expected.encode()) for each in given if each
    )


def read_push(headers: Mapping[str, str], body: bytes) -> Push:
    """Return what a request reports. Raises ValueError if it is not understood."""
    event = next((each for name in EVENTS if (each := headers.get(name))), "").lower()
    if event not in PUSHES:
        return Push(ignored=f"the event {event[:40]} is not a push")
    if headers.get("Content-Type", "").startswith("application/x-www-form-urlencoded"):
        body = parse_qs(body.decode())["payload"][0].encode()
    data = json.loads(body)
    if not isinstance(data, dict):
        raise ValueError("no object")
    if event == "repo:push":
        return _bitbucket_push(data)
    ref, after = data.get("ref"), data.get("after", "")
    if not isinstance(ref, str) or not isinstance(after, str):
        raise ValueError("no ref")
    if not ref.startswith(HEADS):
        return Push(ignored=f"{ref[:80]} is not a branch")
    if data.get("deleted") is True or (after and not after.strip("0")):
        return Push(ignored="the branch was deleted")
    return Push({ref.removeprefix(HEADS): after})


def _bitbucket_push(data: dict[str, Any]) -> Push:
    """Read a push of Bitbucket, where all branches of one ``git push`` are changes of one request."""
    new = [each["new"] for each in data["push"]["changes"] if each.get("new")]
    commits = {str(each["name"]): str(each["target"]["hash"]) for each in new if each["type"] == "branch"}
    return Push(commits) if commits else Push(ignored="no branch has a new commit")


@csrf_exempt
@login_not_required
def hook(request: HttpRequest, hook: str) -> HttpResponse:
    """Accept a request of a Git host. It answers what was done, and why not.

    The pushes of a Git host come from few addresses, which strangers use too. Hence only requests whose signature does not fit are
    counted for their address, and a request that is signed is answered whatever others send.
    """
    if request.method != "POST":
        return _answer(405, "error", "Send a push with POST.")
    source = GitSource.objects.filter(hook=hook, project__deleted_at=None).select_related("project", "bound_by").first()
    secret = keys.unseal(source.sealed_secret) if source is not None else ""
    if source is None or not secret:
        return _refuse_stranger(request, 404, "There is no such webhook.")
    length = request.headers.get("Content-Length") or ""
    if not length.isdecimal() or int(length[:18]) > MAX_BODY_BYTES:
        return _refuse_stranger(request, 413, f"At most {MAX_BODY_BYTES >> 20} MiB.")
    body = request.body
    if not is_signed(request.headers, body, secret):
        return _refuse_stranger(request, 403, "The signature does not fit the secret of this webhook.")
    try:
        push = read_push(request.headers, body)
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return _answer(400, "error", "This is not a push that is understood.")
    return _respond(source, push)


def _refuse_stranger(request: HttpRequest, status: int, detail: str) -> HttpResponse:
    """Answer a request that may be anyone's; one of an address that has sent many learns no more than that."""
    if _count(f"git-hook-refused {counted_address(request.META.get('REMOTE_ADDR', ''))}") > MAX_PER_MINUTE:
        return _answer(429, "error", "Too many requests. Wait a minute.")
    return _answer(status, "error", detail)


def _respond(source: GitSource, push: Push) -> HttpResponse:
    if push.ignored:
        return _answer(200, "ignored", f"Ignored: {push.ignored}.")
    commit = push.commits.get(source.branch)
    if commit is None:
        return _answer(200, "ignored", f"Ignored: the project is bound to the branch {source.branch}.")
    last = fetches.newest_commit(source.project)
    if last is not None and commit == last.commit and last.repository == source.address:
        return _answer(200, "exists", f"Version {last.version.number} was made from this commit.")
    if _count(f"git-hook {source.pk}") > MAX_PER_MINUTE:
        return _answer(429, "error", "Too many pushes. The next one after a minute fetches them all.")
    try:
        made = fetches.request(source.bound_by, source.project, GitFetch.Cause.WEBHOOK)
    except Refused as refusal:
        return _answer(STATUS_OF[refusal.code], "error", refusal.message)
    return _answer(202, "requested", "The newest commit of the branch is fetched.", fetch=made.pk)


def _answer(status: int, state: str, detail: str, **more: Any) -> JsonResponse:
    return JsonResponse({"state": state, "detail": detail, **more}, status=status)


def _count(name: str) -> int:
    """Count one more, and return how many there were in this minute."""
    key = f"{name} {int(time.time()) // MINUTE}".replace(" ", "-")
    if cache.add(key, 1, 2 * MINUTE):
        return 1
    try:
        return int(cache.incr(key))
    except ValueError:  # it expired meanwhile
        return 1
