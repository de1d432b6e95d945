"""How to visit: as whom, where, with what, and what to look at before and after."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import Group
from django.db import models, transaction
from django.test import Client

from portal.accounts.models import ApiToken, AuditEntry, Invite, Limit, User
from portal.accounts.sessions import SessionStore
from portal.cluster.models import JoinToken, Node
from portal.control.models import SchedulerConfig
from portal.jobs.models import Attempt, Job, JobEvent, LogStream, Output
from portal.projects.models import CodeVersion, Membership, Project
from tests.laws.people import World
from tests.laws.tour_table import Visit

WATCHED: list[type[models.Model]] = [
    User, ApiToken, AuditEntry, Invite, Limit, Group, JoinToken, Node, SchedulerConfig,
    Attempt, Job, JobEvent, LogStream, Output, CodeVersion, Membership, Project,
]  # fmt: skip
UNWATCHED_COLUMNS = {"last_login", "last_used_at", "session_salt"}


def client_of(world: World, role: str) -> Client:
    """Signed in by a session that was there before: ``force_login`` takes longer than most of the visits."""
    client = Client(raise_request_exception=False)
    if role != "anonymous":
        user, session = world.users[role], SessionStore()
        session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
        session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
        session.save(must_create=True)
        client.cookies[settings.SESSION_COOKIE_NAME] = str(session.session_key)
    return client


def filled(value: Any, known: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: filled(inner, known) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, known) for inner in value]
    return value.format(**known) if isinstance(value, str) else value


def go(client: Client, visit: Visit, known: dict[str, Any]) -> Any:
    address = visit.address.format(**known)
    data = filled(visit.data, known)
    if visit.raw is not None:
        return client.generic(visit.method, address, visit.raw, content_type="application/octet-stream")
    if visit.method == "GET":
        return client.get(address)
    if address.startswith(("/api/", "/agent/")):
        return getattr(client, visit.method.lower())(address, data, content_type="application/json")
    return getattr(client, visit.method.lower())(address, data)


def text_of(response: Any) -> str:
    """Everything that reaches the visitor: body and headers."""
    content = b"".join(response.streaming_content) if response.streaming else response.content
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    headers = "\n".join(f"{name}: {value}" for name, value in response.items())
    return f"{headers}\n{content.decode('utf-8', 'replace')}"


def rows() -> dict[str, Any]:
    """Everything that an act could change."""
    state = {}
    for model in WATCHED:
        columns = [field.attname for field in model._meta.concrete_fields if field.name not in UNWATCHED_COLUMNS]
        state[model.__name__] = sorted(map(repr, model._default_manager.values_list(*columns)))
    return state


@contextmanager
def undone() -> Iterator[None]:
    """Each visitor meets the same world."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
