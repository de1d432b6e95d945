"""Webhooks: which requests are believed, and what they cause."""

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.core.cache import cache
from django.test import Client

from portal.accounts.models import User
from portal.projects import services
from portal.projects.git import sources, webhooks
from portal.projects.git.models import GitFetch, GitSource
from portal.projects.models import Project
from tests.portal import git_world as made
from tests.portal.jobs_world import make_project, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
PUSH = {"ref": "refs/heads/main", "after": made.SECOND}


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path
    cache.clear()


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    return make_project(alice)


class Host:
    """A Git host that knows the secret."""

    def __init__(self, source: GitSource, secret: str) -> None:
        self.http = Client(enforce_csrf_checks=True)
        self.address = f"/hooks/git/{source.hook}"
        self.secret = secret

    def sign(self, body: bytes, secret: str = "") -> str:
        return hmac.new((secret or self.secret).encode(), body, hashlib.sha256).hexdigest()

    def send(self, data: Any = PUSH, secret: str = "", **headers: str) -> tuple[int, dict[str, Any]]:
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        signed = {"X-Hub-Signature-256": f"sha256={self.sign(body, secret)}", "X-GitHub-Event": "push"}
        return self.post(body, **{**signed, **headers})

    def post(self, body: bytes, content_type: str = "application/json", **headers: str) -> tuple[int, dict[str, Any]]:
        answer = self.http.post(self.address, body, content_type=content_type, headers=headers)
        return answer.status_code, answer.json()


@pytest.fixture
def host(alice: User, project: Project) -> Host:
    source = made.bind(alice, project)
    return Host(source, sources.new_webhook_secret(alice, source))


def test_a_push_requests_a_fetch_once(host: Host, alice: User) -> None:
    status, answer = host.send()
    fetch = GitFetch.objects.get()
    assert (status, answer["state"], answer["fetch"]) == (202, "requested", fetch.pk)
    assert (fetch.cause, fetch.requested_by) == ("webhook", alice)
    assert host.send()[1]["fetch"] == fetch.pk, "the same request once more changes nothing"
    assert GitFetch.objects.count() == 1


def test_a_replay_after_the_fetch_is_harmless(host: Host, alice: User, project: Project) -> None:
    host.send()
    made.finish(made.start(made.make_node()), made.SECOND)
    status, answer = host.send()
    assert (status, answer["state"]) == (200, "exists") and "Version 1" in answer["detail"]
    assert GitFetch.objects.count() == 1 and project.code_versions.count() == 1


@pytest.mark.parametrize(
    ("changes", "headers", "why"),
    [
        ({"ref": "refs/heads/other"}, {}, "bound to the branch main"),
        ({"ref": "refs/tags/v1"}, {}, "not a branch"),
        ({"deleted": True}, {}, "deleted"),
        ({"after": "0" * 40}, {}, "deleted"),
        ({}, {"X-GitHub-Event": "ping"}, "not a push"),
        ({}, {"X-GitHub-Event": "issues"}, "not a push"),
    ],
)
def test_other_events_are_ignored_with_a_reason(
    host: Host, changes: dict[str, Any], headers: dict[str, str], why: str
) -> None:
    status, answer = host.send(PUSH | changes, **headers)
    assert (status, answer["state"]) == (200, "ignored") and why in answer["detail"]
    assert not GitFetch.objects.exists()


def test_how_hosts_sign(host: Host) -> None:
    body = json.dumps(PUSH).encode()
    signature = host.sign(body)
    for headers in (
        {"X-Gitlab-Token": host.secret, "X-Gitlab-Event": "Push Hook"},
        {"X-Gitea-Signature": signature, "X-Gitea-Event": "push"},
        {"X-Forgejo-Signature": signature, "X-Forgejo-Event": "push"},
        {"X-Hub-Signature-256": f"sha256={signature}"},
        {"X-Signature-256": signature},
    ):
        assert host.post(body, **headers)[0] == 202, headers
    form = urlencode({"payload": body.decode()}).encode()
    signed = {"X-Hub-Signature-256": f"sha256={host.sign(form)}", "X-GitHub-Event": "push"}
    assert host.post(form, "application/x-www-form-urlencoded", **signed)[0] == 202
    change = {"new": {"type": "branch", "name": "main", "target": {"hash": made.SECOND}}}
    bitbucket = json.dumps({"push": {"changes": [change]}}).encode()
    signed = {"X-Hub-Signature": f"sha256={host.sign(bitbucket)}", "X-Event-Key": "repo:push"}
    assert host.post(bitbucket, **signed)[0] == 202


def change(name: str, kind: str = "branch", commit: str = made.SECOND) -> dict[str, Any]:
    """Return a change as Bitbucket reports it."""
    return {"old": None, "new": {"type": kind, "name": name, "target": {"hash": commit}}}


def bitbucket(host: Host, *changes: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    body = json.dumps({"push": {"changes": changes}}).encode()
    return host.post(body, **{"X-Hub-Signature": f"sha256={host.sign(body)}", "X-Event-Key": "repo:push"})


GONE = {"old": {"type": "branch", "name": "old"}, "new": None}


@pytest.mark.parametrize(
    "changes",
    [
        [change("main"), change("dev")],
        [change("dev"), change("main"), change("v2", "tag")],
        [GONE, change("main"), GONE],
    ],
)
def test_a_push_of_several_branches_is_one_to_each(host: Host, changes: list[dict[str, Any]]) -> None:
    assert bitbucket(host, *changes)[0] == 202 and GitFetch.objects.count() == 1


def test_the_commit_of_the_bound_branch_counts(host: Host) -> None:
    host.send()
    made.finish(made.start(made.make_node()), made.SECOND)
    assert bitbucket(host, change("main"), change("dev", commit=made.FIRST))[1]["state"] == "exists"
    assert bitbucket(host, change("main", commit=made.FIRST), change("dev"))[1]["state"] == "requested"


@pytest.mark.parametrize(
    "changes",
    [
        [],
        [GONE],
        [change("dev"), change("release/main")],
        [change("main", "tag")],
        [change("dev"), change("main", "tag")],
    ],
)
def test_pushes_of_bitbucket_without_the_bound_branch(host: Host, changes: list[dict[str, Any]]) -> None:
    assert bitbucket(host, *changes)[1]["state"] == "ignored" and not GitFetch.objects.exists()


def test_what_is_not_signed_is_refused(host: Host) -> None:
    body = json.dumps(PUSH).encode()
    for headers in (
        {},
        {"X-Hub-Signature-256": "sha256="},
        {"X-Hub-Signature-256": f"sha256={host.sign(body, 'guessed')}"},
        {"X-Hub-Signature": f"sha1={host.sign(body)[:40]}"},
        {"X-Gitlab-Token": "guessed"},
        {"X-Gitlab-Token": "", "X-Hub-Signature-256": f"sha256={host.sign(body)}"},
        {"X-Gitlab-Token": "été"},
    ):
        status, answer = host.post(body, **headers)
        assert status == 403 and "signature" in answer["detail"], headers
    assert not GitFetch.objects.exists()


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b'{"ref": 3}', b'{"after": "x"}', b"\xff", b"[" * 100_000])
def test_what_is_not_understood_is_refused(host: Host, body: bytes) -> None:
    assert host.send(body)[0] == 400 and not GitFetch.objects.exists()


def test_addresses_without_a_webhook(host: Host, alice: User) -> None:
    source = GitSource.objects.get()
    assert host.http.get(host.address).status_code == 405
    sources.remove_webhook(alice, source)
    assert host.send()[0] == 404
    host.address = "/hooks/git/guessed"
    assert host.send()[0] == 404


def test_guesses_are_counted(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks.time, "time", lambda: 1_000_000.0)
    for _ in range(webhooks.MAX_PER_MINUTE):
        assert host.send(secret="guessed")[0] == 403
    assert host.send(secret="guessed")[0] == 429
    own, host.address = host.address, "/hooks/git/guessed"
    assert host.send()[0] == 429, "whether there is such a webhook is not answered either"
    host.address = own
    monkeypatch.setattr(webhooks.time, "time", lambda: 1_000_120.0)
    assert host.send(secret="guessed")[0] == 403


def test_a_signed_push_is_accepted_whatever_strangers_send(
    host: Host, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks.time, "time", lambda: 1_000_000.0)
    source = made.bind(alice, make_project(alice, "other"))
    other = Host(source, sources.new_webhook_secret(alice, source))
    for address in ("/hooks/git/guessed", host.address):
        other.address = address
        for _ in range(webhooks.MAX_PER_MINUTE):
            other.send()
    assert other.send()[0] == 429
    assert host.send()[0] == 202
    other.address = f"/hooks/git/{source.hook}"
    body = json.dumps(PUSH).encode()
    assert other.post(body, **{"X-Gitlab-Token": other.secret, "X-Gitlab-Event": "Push Hook"})[0] == 202


def test_pushes_are_counted(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks.time, "time", lambda: 1_000_000.0)
    for _ in range(webhooks.MAX_PER_MINUTE):
        assert host.send()[0] == 202
    status, answer = host.send()
    assert status == 429 and "fetches them all" in answer["detail"]


def test_pushes_of_other_branches_do_not_count(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host sends one request for each branch of ``git push --all``."""
    monkeypatch.setattr(webhooks.time, "time", lambda: 1_000_000.0)
    for number in range(webhooks.MAX_PER_MINUTE + 1):
        assert host.send({"ref": f"refs/heads/feature-{number}", "after": made.SECOND})[0] == 200
    assert host.send()[0] == 202


def test_a_large_request_is_not_read(host: Host) -> None:
    assert host.send(b" " * (webhooks.MAX_BODY_BYTES + 1))[0] == 413


def test_a_person_who_left_makes_no_versions(host: Host, alice: User, project: Project) -> None:
    services.archive_project(alice, project)
    status, answer = host.send()
    assert status == 409 and "archived" in answer["detail"]
