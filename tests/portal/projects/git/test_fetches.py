"""Fetches: who requests them, which node makes them, and the code versions that they end with."""

import io
import tarfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from portal.accounts.models import User
from portal.incoming import OffsetMismatchError
from portal.projects import services
from portal.projects.git import fetches, files, hosts, keys, sources
from portal.projects.git.models import GitFetch, GitHost, GitSource, VersionCommit
from portal.projects.models import Membership, Project
from portal.refused import Refused
from portal.sentences import agents, sentence_of
from tests.portal import git_world as made
from tests.portal.jobs_world import make_project, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
State = GitFetch.State


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    return make_project(alice)


def member(project: Project, name: str, role: str = "member") -> User:
    user = make_user(name)
    Membership.objects.create(project=project, user=user, role=role)
    return user


def why(fetch: GitFetch) -> str:
    fetch.refresh_from_db()
    return sentence_of(fetch.message)


def test_a_commit_becomes_a_version(alice: User, project: Project) -> None:
    made.bind(alice, project)
    fetch = made.fetch_commit(alice, project, made.make_node())
    assert fetch.state == State.DONE and fetch.version is not None and fetch.ended_at is not None
    version = fetch.version
    assert (version.number, version.created_by, version.note) == (1, alice, "Train longer")
    assert [each["path"] for each in version.files] == ["train.py"]
    commit = version.origin
    assert (commit.commit, commit.branch, commit.author) == (made.FIRST, "main", "Ada")
    assert commit.url == f"https://github.com/lab/train/commit/{made.FIRST}"
    assert why(fetch) == "Version 1 was made from 1a1a1a1a1a."
    assert list(files.folder().glob(".incoming-*")) == []


def test_each_commit_makes_its_version_also_with_the_same_files(alice: User, project: Project) -> None:
    made.bind(alice, project)
    node = made.make_node()
    files = {"train.py": "print(1)\n"}
    for number, commit in enumerate((made.FIRST, made.SECOND), 1):
        fetches.request(alice, project)
        fetch = made.finish(made.start(node), commit, files)
        assert fetch.version is not None and fetch.version.number == number


def test_a_branch_that_has_not_moved_makes_none(alice: User, project: Project) -> None:
    made.bind(alice, project)
    node = made.make_node()
    made.fetch_commit(alice, project, node)
    fetches.request(alice, project)
    claim = fetches.claim(node, ssh=True)
    assert claim is not None and claim.order["known"] == made.FIRST
    fetches.finish_unchanged(claim.fetch, made.FIRST)
    assert "nothing is new" in why(claim.fetch) and claim.fetch.state == State.UNCHANGED
    assert claim.fetch.version == project.code_versions.get()
    made.bind(alice, project, branch="next")
    fetches.request(alice, project)
    other = fetches.claim(node, ssh=True)
    assert other is not None and other.order["known"] == "", "another branch may have it, too"
    with pytest.raises(Refused):
        fetches.finish_unchanged(other.fetch, made.SECOND)


def test_notes_on_a_version(alice: User, project: Project) -> None:
    made.bind(alice, project)
    fetch = made.fetch_commit(
        alice,
        project,
        made.make_node(),
        rewritten=True,
        pointers=("weights.bin",),
        pointer_count=1,
        left_out=("lib/a", "lib/b"),
        left_out_count=9,
    )
    assert fetch.version is not None and fetch.version.origin.rewritten
    text = why(fetch)
    assert "was rewritten" in text and "weights.bin" in text and "lib/a, lib/b and 7 more" in text
    assert len(fetch.version.guess["notes"]) == 3


@pytest.mark.parametrize("files", [{"src/a.py": "x"}, {"__init__.py": "", "a.py": "x"}, {"net/__init__.py": ""}])
def test_paths_stay_as_they_are(alice: User, project: Project, files: dict[str, str]) -> None:
    made.bind(alice, project)
    fetches.request(alice, project)
    fetch = made.finish(made.start(made.make_node()), made.FIRST, files)
    assert fetch.version is not None and [each["path"] for each in fetch.version.files] == sorted(files)
    assert fetch.version.guess["notes"] == []


def test_a_hostile_author_is_one_line_of_text(alice: User, project: Project) -> None:
    made.bind(alice, project)
    hostile: dict[str, Any] = {
        "author": "Ada\n\u202e<b>" + "x" * 300,
        "subject": "one\ttwo\x1b[31m",
        "committed_at": 2**39,
    }
    fetch = made.fetch_commit(alice, project, made.make_node(), **hostile)
    assert fetch.version is not None
    commit = fetch.version.origin
    assert commit.author.startswith("Ada <b>x") and len(commit.author) <= 200
    assert commit.subject == "one two[31m" and commit.committed_at is None


@pytest.mark.parametrize("name", ["../escaped", "/etc/passwd", "a\x01b"])
def test_files_are_judged_as_an_upload(alice: User, project: Project, name: str) -> None:
    made.bind(alice, project)
    fetches.request(alice, project)
    fetch = made.start(made.make_node())
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("train.py"), io.BytesIO())
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    fetches.append_code(fetch, 0, [packed.getvalue()])
    fetches.finish(fetch, fetches.CommitFacts(made.FIRST))
    fetch.refresh_from_db()
    paths = [each["path"] for version in project.code_versions.all() for each in version.files]
    assert fetch.state in (State.FAILED, State.DONE) and all(".." not in path and path[0] != "/" for path in paths)


def test_an_archive_that_is_none(alice: User, project: Project) -> None:
    made.bind(alice, project)
    fetches.request(alice, project)
    fetch = made.start(made.make_node())
    fetches.append_code(fetch, 0, [b"no archive"])
    with pytest.raises(OffsetMismatchError):
        fetches.append_code(fetch, 3, [b"x"])
    fetches.finish(fetch, fetches.CommitFacts(made.FIRST))
    assert "cannot become a code version" in why(fetch) and fetch.state == State.FAILED
    assert not project.code_versions.exists() and not VersionCommit.objects.exists()


def test_who_may_request_and_cancel(alice: User, project: Project) -> None:
    with pytest.raises(Refused, match="not bound"):
        fetches.request(alice, project)
    made.bind(alice, project)
    for user in (member(project, "victor", "viewer"), make_user("charlie")):
        with pytest.raises(Refused, match="Only members"):
            fetches.request(user, project)
    bob = member(project, "bob")
    fetch = fetches.request(bob, project)
    assert fetches.request(alice, project) == fetch, "one that waits fetches the newest commit anyway"
    with pytest.raises(Refused, match="Only members"):
        fetches.cancel(make_user("dora"), fetch)
    assert fetches.cancel(alice, fetch) and not fetches.cancel(alice, fetch)
    assert why(fetch) == "alice cancelled this fetch."
    services.archive_project(alice, project)
    with pytest.raises(Refused, match="archived"):
        fetches.request(alice, project)


def test_a_fetch_that_was_deleted_cannot_be_cancelled(alice: User, project: Project) -> None:
    made.bind(alice, project)
    fetch = fetches.request(alice, project)
    GitFetch.objects.all().delete()
    assert not fetches.cancel(alice, fetch)


def test_one_that_runs_ends_before_the_next_begins(alice: User, project: Project) -> None:
    """A branch to which more is pushed than a fetch takes gets versions, too."""
    made.bind(alice, project)
    node, other = made.make_node(), made.make_node("n2")
    fetches.request(alice, project)
    running = made.start(node)
    new = fetches.request(alice, project)
    assert new != running and fetches.request(alice, project) == new, "all later requests share one"
    assert fetches.claim(other, ssh=True) is None and fetches.count_waiting() == 0
    assert made.finish(running).version == project.code_versions.get()
    assert fetches.count_waiting() == 1 and made.start(other) == new
    assert made.finish(GitFetch.objects.get(pk=new.pk), made.SECOND).state == State.DONE
    assert project.code_versions.count() == 2


def test_a_lost_one_makes_room_for_the_next(alice: User, project: Project) -> None:
    made.bind(alice, project)
    fetches.request(alice, project)
    lost = made.start(made.make_node())
    new = fetches.request(alice, project)
    GitFetch.objects.filter(pk=lost.pk).update(renewed_at=timezone.now() - fetches.LEASE - timedelta(seconds=1))
    assert fetches.count_waiting() == 1
    assert made.start(made.make_node("n2")) == new
    assert "newer fetch" in why(lost) and lost.state == State.REPLACED
    with pytest.raises(fetches.FetchEndedError):
        fetches.finish(lost, fetches.CommitFacts(made.FIRST))


def test_a_changed_branch_replaces_a_fetch_that_waits(alice: User, project: Project) -> None:
    made.bind(alice, project)
    first = fetches.request(alice, project)
    made.bind(alice, project, branch="next")
    assert fetches.claim(made.make_node(), ssh=True) is None, "it was for another branch"
    first.refresh_from_db()
    assert first.state == State.CANCELLED
    assert fetches.request(alice, project).branch == "next"


def test_nodes_get_what_they_can_fetch(alice: User, project: Project) -> None:
    made.bind(alice, project, made.SSH)
    fetches.request(alice, project)
    node = made.make_node()
    assert fetches.claim(node, ssh=False) is None
    claim = fetches.claim(node, ssh=True)
    assert claim is not None
    order = claim.order
    assert order["address"] == "ssh://git@github.com/lab/train.git" and order["user"] == "git"
    assert order["key"].startswith("-----BEGIN OPENSSH PRIVATE KEY-----") and order["token"] == ""
    assert order["hosts"] == ["github.com:22"] and order["extras"] is False
    again = fetches.claim(node, ssh=True)
    assert again is not None and again.fetch == claim.fetch, "its agent was restarted, and begins again"
    assert fetches.claim(made.make_node("n2"), ssh=True) is None


def test_the_order_has_the_token_and_the_allowed_hosts(alice: User, project: Project) -> None:
    made.allow("*.lfs.example.org", extras=True)
    made.allow("git.lab:8443", internal=True, extras=True)
    made.bind(alice, project, "https://git.lab:8443/x/train.git", user="robot", token="t0ken", extras=True)
    fetches.request(alice, project)
    claim = fetches.claim(made.make_node(), ssh=True)
    assert claim is not None and claim.order["token"] == "t0ken" and claim.order["user"] == "robot"
    assert claim.order["hosts"] == [
        "git.lab:8443 internal",
        "*.lfs.example.org:443",
        "*.lfs.example.org:22",
    ]
    assert "t0ken" not in str(GitSource.objects.values().get())


def test_a_host_that_is_no_longer_allowed(alice: User, project: Project) -> None:
    made.bind(alice, project)
    fetch = fetches.request(alice, project)
    hosts.forbid(made.make_admin(), GitHost.objects.get())
    assert fetches.claim(made.make_node(), ssh=True) is None
    assert "may not be fetched from github.com" in why(fetch)
    with pytest.raises(Refused, match="No host is allowed yet"):
        fetches.request(alice, project)


def test_a_lost_key_is_named(alice: User, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    made.bind(alice, project, user="robot", token="t0ken")
    fetch = fetches.request(alice, project)
    (fetches.settings.HOME / keys.KEY_FILE).write_text("another key")
    assert sources.is_key_lost(GitSource.objects.get())
    assert fetches.claim(made.make_node(), ssh=True) is None
    assert "cannot be read any more" in why(fetch)


def test_a_node_that_stops_loses_its_fetch(alice: User, project: Project) -> None:
    made.bind(alice, project)
    fetches.request(alice, project)
    nodes = [made.make_node(f"n{number}") for number in range(4)]
    for node in nodes[:3]:
        fetch = made.start(node)
        assert fetch.node == node
        long_ago = timezone.now() - fetches.LEASE - timedelta(seconds=1)
        GitFetch.objects.filter(pk=fetch.pk).update(renewed_at=long_ago)
        assert fetches.count_waiting() == 1
    assert fetches.claim(nodes[3], ssh=True) is None
    fetch.refresh_from_db()
    assert fetch.state == State.LOST and "n2 stopped" in why(fetch)


def test_a_fetch_that_ends_its_agent_is_given_up(alice: User, project: Project) -> None:
    made.bind(alice, project)
    fetches.request(alice, project)
    other = make_project(alice, "other")
    made.bind(alice, other)
    node = made.make_node()
    for tries in range(1, fetches.MAX_TRIES + 1):
        fetch = made.start(node)
        assert fetch.project == project and fetch.tries == tries
    fetches.request(alice, other)
    assert made.start(node).project == other
    fetch.refresh_from_db()
    assert fetch.state == State.LOST and "n1 stopped" in why(fetch)


@pytest.mark.parametrize("broken", [False, True])
def test_a_piece_that_arrives_while_the_fetch_ends_leaves_no_file(alice: User, project: Project, broken: bool) -> None:
    made.bind(alice, project)
    fetches.request(alice, project)
    fetch = made.start(made.make_node())

    def pieces() -> Iterator[bytes]:
        yield b"x"
        fetches.cancel(alice, fetch)
        if broken:
            raise ConnectionError
        yield b"y"

    with pytest.raises(fetches.FetchEndedError):
        fetches.append_code(fetch, 0, pieces())
    with pytest.raises(fetches.FetchEndedError):
        fetches.append_code(fetch, 0, [b"z"])
    assert not files.archives()


def test_pieces_of_two_tries_are_apart(alice: User, project: Project) -> None:
    made.bind(alice, project)
    fetches.request(alice, project)
    first, again = made.make_node(), made.make_node("n2")
    lost = made.start(first)
    fetches.append_code(lost, 0, [b"lost"])
    GitFetch.objects.update(renewed_at=timezone.now() - fetches.LEASE - timedelta(seconds=1))
    fetch = made.start(again)
    with pytest.raises(fetches.FetchEndedError):
        fetches.append_code(lost, 0, [b"late"])
    renewed = GitFetch.objects.get().renewed_at
    assert fetches.append_code(fetch, 0, [b"new"]) == 3 and list(files.archives().values()) == [(fetch.pk, 2)]
    with pytest.raises(fetches.FetchEndedError):
        fetches.record_progress(lost, 1, "", 0, b"")
    assert renewed is not None and renewed >= timezone.now() - timedelta(seconds=100)


@pytest.mark.parametrize(
    ("seconds", "year"), [(0, None), (1, 1970), (4_102_444_799, 2099), (4_102_444_800, None), (253_402_300_799, None)]
)
def test_times_of_commits(seconds: int, year: int | None) -> None:
    time = fetches.CommitFacts(made.FIRST, committed_at=seconds).time
    assert (time.year if time else None) == year


def test_a_fetch_that_no_node_takes_is_given_up(alice: User, project: Project) -> None:
    made.bind(alice, project)
    fetch = fetches.request(alice, project)
    GitFetch.objects.update(requested_at=timezone.now() - fetches.MAX_WAIT)
    fetches.end_lost()
    assert "For 12 hours" in why(fetch) and fetch.state == State.FAILED


def test_only_new_agents_count_as_able() -> None:
    made.make_node("new")
    old = made.make_node("old")
    old.facts = {}
    old.save()
    gone = made.make_node("gone")
    gone.last_seen_at = timezone.now() - timedelta(hours=1)
    gone.save()
    assert [node.name for node in fetches.able_nodes()] == ["new"]


def test_the_key_of_a_host_is_offered_until_it_is_confirmed(alice: User, project: Project) -> None:
    source = made.bind(alice, project, made.SSH)
    fetches.request(alice, project)
    fetch = made.start(made.make_node())
    fetches.fail(fetch, agents.git_failures.HostKeyUnknown("github.com", "SHA256:x").data(), made.KEY)
    source.refresh_from_db()
    assert source.offered_host_key == made.KEY and source.host_key == ""
    with pytest.raises(Refused, match="another key"):
        sources.confirm_host_key(alice, source, "SHA256:other")
    sources.confirm_host_key(alice, source, keys.fingerprint(made.KEY))
    assert (source.host_key, source.offered_host_key) == (made.KEY, "")
    fetches.request(alice, project)
    claim = fetches.claim(made.make_node("n2"), ssh=True)
    assert claim is not None and claim.order["host_key"] == made.KEY
    fetches.fail(claim.fetch, "", "ssh-ed25519 not a key; rm -rf /")
    source.refresh_from_db()
    assert source.offered_host_key == ""


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"commit": 3},
        {"commit": "main"},
        {"commit": "G" * 40},
        {"commit": made.FIRST, "committed_at": "now"},
        {"commit": made.FIRST, "pointer_count": -1},
        {"commit": made.FIRST, "left_out": "x"},
    ],
)
def test_reports_that_are_not_understood(answer: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        fetches.details_of(answer)
