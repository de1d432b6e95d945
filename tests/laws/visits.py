"""Visits of routes by each role: how to send them, and what to compare before and after."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import Group
from django.db import connection, models, transaction
from django.test import Client

from portal.accounts.models import ApiToken, AuditEntry, Invite, Limit, User
from portal.accounts.sessions import SessionStore
from portal.cluster.models import JoinToken, Node
from portal.environments.models import AllowedHost, Build, Environment, PackageSettings
from portal.jobs.models import Attempt, Job, JobEvent, LogStream, Output
from portal.projects.models import CodeVersion, Membership, Project
from portal.scheduler.models import SchedulerConfig
from portal.storage.models import Dataset, DatasetVersion, Upload
from tests.laws.people import World
from tests.laws.route_words import Visit

WATCHED: list[type[models.Model]] = [
    User, ApiToken, AuditEntry, Invite, Limit, Group, JoinToken, Node, SchedulerConfig,
    AllowedHost, Environment, Build, PackageSettings, Attempt, Job, JobEvent, LogStream, Output, CodeVersion, Membership, Project,
    Dataset, DatasetVersion, Upload,
]  # fmt: skip
UNWATCHED_COLUMNS = {"last_login", "last_used_at", "session_salt"}


def client_of(world: World, role: str, **options: Any) -> Client:
    """Return a client with a new session for the role; ``force_login`` would take longer than most visits."""
    client = Client(raise_request_exception=False, **options)
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
    """Return everything that reaches the visitor: headers and body."""
    content = b"".join(response.streaming_content) if response.streaming else response.content
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    headers = "\n".join(f"{name}: {value}" for name, value in response.items())
    return f"{headers}\n{content.decode('utf-8', 'replace')}"


@cache
def queries() -> dict[str, str]:
    """Return one plain query per watched model: thousands of calls of ``rows`` would be slowed by the ORM's compiler."""
    quote = connection.ops.quote_name
    return {
        model.__name__: "SELECT {} FROM {} ORDER BY {}".format(  # noqa: S608  names of our own models
            ", ".join(
                quote(str(each.column)) for each in model._meta.concrete_fields if each.name not in UNWATCHED_COLUMNS
            ),
            quote(model._meta.db_table),
            quote(str(model._meta.pk.column)),
        )
        for model in WATCHED
    }


def rows() -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows that a request could change."""
    state = {}
    with connection.cursor() as cursor:
        for name, query in queries().items():
            cursor.execute(query)
            state[name] = cursor.fetchall()
    return state


@contextmanager
def undone() -> Iterator[None]:
    """Roll back what happens inside, so that each visitor meets the same world."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@dataclass
class Walk:
    """A loop over many cases that continues after a failed one and reports all failures by name at its end."""

    cases: int = 0
    failures: list[str] = field(default_factory=list)

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Run one case and undo it; note a failed assertion or any other exception."""
        self.cases += 1
        try:
            with undone():
                yield
        except Exception as error:  # noqa: BLE001  every case is to be reported, whatever broke in it
            self.failures.append(f"{name}: {type(error).__name__} {error}"[:600])

    def report(self, at_least: int) -> None:
        """Fail with all failures, or when there were fewer cases than ``at_least``: an empty loop proves nothing."""
        assert self.cases >= at_least, f"only {self.cases} cases"
        assert not self.failures, f"{len(self.failures)} of {self.cases} cases:\n" + "\n".join(self.failures)
