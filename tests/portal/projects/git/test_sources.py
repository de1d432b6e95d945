"""Binding a project to a repository: addresses, hosts, tokens and keys."""

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from portal.accounts.models import AuditEntry, User
from portal.projects.git import hosts, keys, sources
from portal.projects.git.addresses import read_address
from portal.projects.git.models import GitHost, GitSource
from portal.projects.models import Membership, Project
from portal.refused import Refused
from runners.host.egress import HostRule
from tests.portal import git_world as made
from tests.portal.jobs_world import make_project, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    return make_project(alice)


def test_a_token_is_sealed_and_stays_until_it_is_replaced(alice: User, project: Project) -> None:
    source = made.bind(alice, project, user="robot", token="t0ken")
    assert keys.unseal(source.sealed_token) == "t0ken" and source.user == "robot"
    assert "t0ken" not in str(list(GitSource.objects.values())) + str(list(AuditEntry.objects.values()))
    assert keys.unseal(made.bind(alice, project, branch="next").sealed_token) == "t0ken"
    assert keys.unseal(made.bind(alice, project, token="other").sealed_token) == "other"
    assert made.bind(alice, project).user == "git", "git needs one"
    assert made.bind(alice, project, token="").sealed_token == ""


def test_another_host_gets_neither_token_nor_host_key(alice: User, project: Project) -> None:
    made.allow()
    made.allow("git.example.org")
    made.bind(alice, project, token="t0ken")
    assert made.bind(alice, project, "https://git.example.org/lab/train.git").sealed_token == ""
    source = made.bind(alice, project, made.SSH)
    GitSource.objects.filter(pk=source.pk).update(host_key=made.KEY)
    kept = made.bind(alice, project, "git@github.com:lab/other.git")
    assert kept.host_key == made.KEY and kept.public_key == source.public_key
    assert made.bind(alice, project, "git@git.example.org:lab/train.git").host_key == ""


OTHER = "https://github.com/alice/thesis.git"


def owner(project: Project, name: str) -> User:
    user = make_user(name)
    Membership.objects.create(project=project, user=user, role="owner")
    return user


def test_a_token_stays_with_its_repository_and_with_who_entered_it(alice: User, project: Project) -> None:
    made.allow("github.com", extras=True)
    bob = owner(project, "bob")
    made.bind(alice, project, token="t0ken")
    for branch in ("next", "main"):
        assert keys.unseal(made.bind(bob, project, branch=branch).sealed_token) == "t0ken"
    assert keys.unseal(made.bind(alice, project, OTHER).sealed_token) == "t0ken", "it is hers"
    assert made.bind(bob, project, made.HTTPS).sealed_token == "", "he bound it last before, but did not enter it"
    assert made.bind(alice, project, OTHER).sealed_token == "", "it is forgotten"
    made.bind(alice, project, OTHER, token="t0ken")
    assert made.bind(bob, project, OTHER, extras=True).sealed_token == "", "submodules may be of any repository"
    made.bind(alice, project, OTHER, token="t0ken", extras=True)
    assert keys.unseal(made.bind(bob, project, OTHER, extras=True).sealed_token) == "t0ken"
    made.bind(bob, project, OTHER, token="his")
    assert made.bind(alice, project, made.HTTPS).sealed_token == ""


def test_a_deploy_key_stays_with_its_repository_and_with_who_made_it(alice: User, project: Project) -> None:
    bob = owner(project, "bob")
    first = made.bind(alice, project, made.SSH).public_key
    assert made.bind(bob, project, made.SSH, "next").public_key == first
    assert made.bind(alice, project, "git@github.com:lab/other.git").public_key == first
    second = made.bind(bob, project, "git@github.com:alice/thesis.git").public_key
    assert second != first
    assert made.bind(bob, project, made.SSH).public_key == second
    sources.new_deploy_key(alice, GitSource.objects.get())
    third = GitSource.objects.get().public_key
    assert made.bind(bob, project, "git@github.com:alice/thesis.git").public_key != third
    assert made.bind(alice, project).sealed_key == "", "https has none"
    made.bind(bob, project, token="his")
    assert made.bind(alice, project, made.SSH).sealed_token == ""


def test_a_token_of_the_release_before_stays_with_its_repository(alice: User, project: Project) -> None:
    made.bind(alice, project, token="t0ken")
    GitSource.objects.update(access_by=None)
    assert keys.unseal(made.bind(alice, project, branch="next").sealed_token) == "t0ken"
    assert made.bind(alice, project, OTHER).sealed_token == "", "another owner may have entered it"


@pytest.mark.parametrize(
    "act",
    [
        lambda user, source: sources.confirm_host_key(user, source, "x"),
        sources.new_deploy_key,
        sources.new_webhook_secret,
        sources.remove_webhook,
        lambda user, source: sources.unbind(user, source.project),
        lambda user, source: made.bind(user, source.project),
    ],
)
def test_what_was_unbound_or_deleted_meanwhile_is_refused(project: Project, act: Any) -> None:
    ada = made.make_admin()
    source = made.bind(ada, project, made.SSH)
    read = GitSource.objects.select_related("project").get(pk=source.pk)
    sources.unbind(ada, project)
    if act in (sources.new_deploy_key, sources.new_webhook_secret, sources.remove_webhook):
        with pytest.raises(Refused, match="not bound to a repository any more") as refusal:
            act(ada, read)
        assert refusal.value.code == "conflict"
    Project.objects.all().delete()
    with pytest.raises(Refused, match="was deleted"):
        act(ada, read)


def test_a_deploy_key_is_made_by_the_portal(alice: User, project: Project) -> None:
    source = made.bind(alice, project, made.SSH)
    private = load_ssh_private_key((keys.unseal(source.sealed_key) or "").encode(), None)
    public = load_ssh_public_key(source.public_key.encode())
    assert private.public_key().public_bytes_raw() == public.public_bytes_raw()  # type: ignore[union-attr]
    assert source.public_key.startswith("ssh-ed25519 ") and source.public_key.endswith(
        f" schedulearn-project-{project.pk}"
    )
    before = source.public_key
    sources.new_deploy_key(alice, source)
    assert source.public_key != before
    with pytest.raises(Refused, match="deploy key"):
        made.bind(alice, project, made.SSH, token="t0ken")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"address": "ext::sh"}, "address"),
        ({"address": "https://example.org/x"}, "address"),
        ({"address": "https://github.com.evil.org/x"}, "address"),
        ({"address": "https://github.com:8443/x"}, "address"),
        ({"branch": "-x"}, "branch"),
        ({"user": "a:b"}, "user"),
        ({"user": "a\nb"}, "user"),
        ({"token": "a\nb"}, "token"),
        ({"token": " a"}, "token"),
        ({"token": "x" * 10_001}, "token"),
        ({"extras": True}, "extras"),
    ],
)
def test_what_is_refused_names_its_field(alice: User, project: Project, options: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refusal:
        made.bind(alice, project, **options)
    assert refusal.value.field == field and not GitSource.objects.exists()


def test_only_owners_bind(alice: User, project: Project) -> None:
    bob = make_user("bob")
    Membership.objects.create(project=project, user=bob, role="member")
    with pytest.raises(Refused, match="Only owners"):
        made.bind(bob, project)
    source = made.bind(alice, project)
    for act in (
        lambda: sources.unbind(bob, project),
        lambda: sources.confirm_host_key(bob, source, "x"),
        lambda: sources.new_deploy_key(bob, source),
        lambda: sources.new_webhook_secret(bob, source),
        lambda: sources.remove_webhook(bob, source),
    ):
        with pytest.raises(Refused, match="Only owners"):
            act()
    sources.unbind(alice, project)
    sources.unbind(alice, project)
    assert not GitSource.objects.exists()
    assert (
        list(AuditEntry.objects.filter(action__startswith="git.").values_list("action", flat=True)).count("git.bind")
        == 1
    )


def test_only_admins_allow_hosts(alice: User) -> None:
    with pytest.raises(Refused, match="Only admins"):
        hosts.allow(alice, "github.com")
    ada = made.make_admin()
    row = hosts.allow(ada, "GitHub.com", note=" all of us ")
    assert (row.host, row.note) == ("github.com", "all of us")
    with pytest.raises(Refused, match="allowed already"):
        hosts.allow(ada, "github.com")
    for typed in ("", "https://github.com", "127.0.0.1", "*.com", "a b"):
        with pytest.raises(Refused):
            hosts.allow(ada, typed)
    with pytest.raises(Refused, match="nodes may fetch from it"):
        hosts.allow(ada, "10.0.0.5")
    with pytest.raises(Refused, match="Choose one of"):
        hosts.allow(ada, "git.example.org", kind="svn")
    with pytest.raises(Refused, match="Only admins"):
        hosts.forbid(alice, row)
    hosts.forbid(ada, row)
    assert not GitHost.objects.exists()


def test_which_hosts_cover_an_address() -> None:
    plain, star, port = GitHost(host="github.com"), GitHost(host="*.example.org"), GitHost(host="git.lab:2222")
    assert hosts.covers(plain, "github.com", 443) and hosts.covers(plain, "github.com", 22)
    assert not hosts.covers(plain, "github.com", 8443) and not hosts.covers(plain, "a.github.com", 443)
    assert hosts.covers(star, "a.b.example.org", 22) and not hosts.covers(star, "example.org", 22)
    assert not hosts.covers(star, "evilexample.org", 443)
    assert hosts.covers(port, "git.lab", 2222) and not hosts.covers(port, "git.lab", 22)


def test_rules_are_what_agents_read() -> None:
    hosts.allow(made.make_admin(), "lfs.example.org", extras=True)
    row = hosts.allow(made.make_admin(), "git.lab:2222", internal=True)
    address = read_address("ssh://git@git.lab:2222/x")
    assert hosts.rules_for(address, row, extras=False) == ["git.lab:2222 internal"]
    for rule in hosts.rules_for(address, row, extras=True):
        assert HostRule.parse(rule).ports <= {22, 443, 2222}
