"""What ends an open fetch: a change of the repository, its host, the project or its members, before and while a node makes it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portal.accounts.models import User
from portal.projects import services
from portal.projects.git import fetches, files, hosts, sources
from portal.projects.git.models import GitFetch, GitHost, GitSource
from portal.projects.models import Membership, Project
from portal.sentences import sentence_of
from tests.portal import git_world as made
from tests.portal.jobs_world import make_project, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
State = GitFetch.State
Change = Callable[[User, Project], object]


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def bob() -> User:
    return make_user("bob")


@pytest.fixture
def project(alice: User, bob: User) -> Project:
    project = make_project(alice)
    Membership.objects.create(project=project, user=bob, role="member")
    made.allow()
    made.bind(alice, project, user="robot", token="t0ken")
    return project


def bob_in(project: Project) -> Membership:
    return Membership.objects.get(project=project, user__username="bob")


CHANGES: dict[str, tuple[Change, str]] = {
    "unbind": (sources.unbind, "was changed or removed"),
    "address": (lambda alice, project: made.bind(alice, project, f"{made.HTTPS}x"), "was changed or removed"),
    "branch": (lambda alice, project: made.bind(alice, project, branch="next"), "was changed or removed"),
    "host": (lambda alice, project: hosts.forbid(made.make_admin(), GitHost.objects.get()), "may not be fetched from"),
    "archive": (services.archive_project, "was archived"),
    "removal": (lambda alice, project: services.unshare(alice, bob_in(project)), "bob, who requested it"),
    "role": (lambda alice, project: services.change_role(alice, bob_in(project), "viewer"), "bob, who requested it"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("running", [False, True])
def test_a_change_ends_the_fetch_at_once(
    alice: User, bob: User, project: Project, change: str, running: bool, django_capture_on_commit_callbacks: Any
) -> None:
    act, why = CHANGES[change]
    node = made.make_node()
    fetch = fetches.request(bob, project)
    if running:
        fetch = made.start(node)
        fetches.append_code(fetch, 0, [b"half of it"])
    with django_capture_on_commit_callbacks(execute=True):
        act(alice, project)
    fetch.refresh_from_db()
    assert fetch.state == State.CANCELLED and why in sentence_of(fetch.message) and fetch.ended_at is not None
    assert not files.archives()
    assert fetches.claim(node, ssh=True) is None


OLD: dict[str, Change] = {
    "unbind": lambda alice, project: GitSource.objects.all().delete(),
    "address": lambda alice, project: GitSource.objects.update(address="https://github.com/lab/other.git"),
    "branch": lambda alice, project: GitSource.objects.update(branch="next"),
    "host": lambda alice, project: GitHost.objects.all().delete(),
    "archive": lambda alice, project: Project.objects.update(archived_at=project.created_at),
    "removal": lambda alice, project: bob_in(project).delete(),
    "role": lambda alice, project: Membership.objects.filter(user__username="bob").update(role="viewer"),
    "account": lambda alice, project: User.objects.filter(username="bob").update(is_active=False),
}
"""The same changes as the release before made them, which left open fetches as they were."""


@pytest.mark.parametrize("change", OLD)
def test_one_that_waits_is_not_given_to_a_node(alice: User, bob: User, project: Project, change: str) -> None:
    fetch = fetches.request(bob, project)
    OLD[change](alice, project)
    other = make_project(alice, "other")
    if change != "host":
        made.bind(alice, other)
        fetches.request(alice, other)
    claim = fetches.claim(made.make_node(), ssh=True)
    assert claim is None if change == "host" else (claim is not None and claim.fetch.project == other)
    fetch.refresh_from_db()
    assert fetch.state == State.CANCELLED and fetch.message


@pytest.mark.parametrize("change", OLD)
@pytest.mark.parametrize("unchanged", [False, True])
def test_a_result_counts_only_for_what_is_bound_now(
    alice: User, bob: User, project: Project, change: str, unchanged: bool
) -> None:
    made.fetch_commit(alice, project, made.make_node())
    fetches.request(bob, project)
    fetch = made.start(made.make_node("n2"))
    OLD[change](alice, project)
    if unchanged:
        fetches.finish_unchanged(fetch, made.FIRST)
    else:
        made.finish(fetch, made.SECOND)
    fetch.refresh_from_db()
    assert fetch.state == State.CANCELLED and fetch.version is None
    assert project.code_versions.count() == 1 and not files.archives()


def test_a_change_while_the_files_are_unpacked(
    alice: User, bob: User, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last check is in the transaction that makes the version."""
    fetches.request(bob, project)
    fetch = made.start(made.make_node())
    inspect = services.inspection.inspect

    def slow(sha256: str) -> Any:
        GitSource.objects.update(branch="next")
        return inspect(sha256)

    monkeypatch.setattr(services.inspection, "inspect", slow)
    assert made.finish(fetch).state == State.CANCELLED
    assert not project.code_versions.exists()


def test_a_token_that_was_removed_is_not_used_any_longer(alice: User, bob: User, project: Project) -> None:
    waits = fetches.request(bob, project)
    made.bind(alice, project, token="another")
    waits.refresh_from_db()
    assert waits.state == State.WAITING, "it gets the new one when a node asks"
    claim = fetches.claim(made.make_node(), ssh=True)
    assert claim is not None and claim.order["token"] == "another"
    made.bind(alice, project)
    claim.fetch.refresh_from_db()
    assert claim.fetch.state == State.RUNNING, "nothing has changed"
    made.bind(alice, project, token="")
    claim.fetch.refresh_from_db()
    assert claim.fetch.state == State.CANCELLED


def test_a_deploy_key_that_was_replaced_is_not_used_any_longer(alice: User, project: Project) -> None:
    source = made.bind(alice, project, made.SSH)
    fetches.request(alice, project)
    fetch = made.start(made.make_node())
    sources.new_deploy_key(alice, source)
    fetch.refresh_from_db()
    assert fetch.state == State.CANCELLED


def test_other_fetches_go_on(alice: User, bob: User, project: Project) -> None:
    made.allow("*.example.org")
    made.allow("git.example.org")
    made.allow("lfs.example.net", extras=True)
    other = make_project(alice, "other")
    made.bind(alice, other, "https://git.example.org/lab/train.git")
    fetch = fetches.request(alice, other)
    sources.unbind(alice, project)
    services.archive_project(alice, project)
    for host in ("github.com", "git.example.org", "lfs.example.net"):
        hosts.forbid(made.make_admin(), GitHost.objects.get(host=host))
    fetch.refresh_from_db()
    assert fetch.state == State.WAITING, "another row covers its host"
    hosts.forbid(made.make_admin(), GitHost.objects.get())
    fetch.refresh_from_db()
    assert fetch.state == State.CANCELLED


def test_a_host_of_submodules_that_is_no_longer_allowed(alice: User) -> None:
    made.allow("git.example.org", extras=True)
    made.allow("lfs.example.net", extras=True)
    project = make_project(alice, "with extras")
    made.bind(alice, project, "https://git.example.org/lab/train.git", extras=True)
    fetches.request(alice, project)
    fetch = made.start(made.make_node())
    hosts.forbid(made.make_admin(), GitHost.objects.get(host="lfs.example.net"))
    fetch.refresh_from_db()
    assert fetch.state == State.CANCELLED and "lfs.example.net" in sentence_of(fetch.message)


def test_a_request_is_not_answered_with_one_that_will_be_refused(alice: User, bob: User, project: Project) -> None:
    old = fetches.request(bob, project)
    OLD["removal"](alice, project)
    new = fetches.request(alice, project)
    old.refresh_from_db()
    assert new != old and new.requested_by == alice and old.state == State.REPLACED


def test_members_who_are_admins_go_on(alice: User, project: Project) -> None:
    ada = made.make_admin()
    membership = services.share(alice, project, "ada", "member")
    fetch = fetches.request(ada, project)
    services.unshare(alice, membership)
    fetch.refresh_from_db()
    assert fetch.state == State.WAITING
