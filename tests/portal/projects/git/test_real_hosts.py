"""From a commit at a real Git host to a code version, as portal and node do it together: by https and by ssh, in bubblewrap."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portal.accounts.models import User
from portal.projects import store
from portal.projects.git import fetches, keys, sources
from portal.projects.git.models import GitFetch
from portal.projects.models import Project
from portal.sentences import sentence_of
from runners.environments.layers.sandbox import process_sandbox
from runners.environments.preparing import PrepareError
from runners.sources.fetch import HostKeyError, fetched
from runners.sources.order import FetchOrder
from tests.git_hosts import TOKEN, USER, Repository, https_host, make_repository, own_address, ssh_host
from tests.portal import git_world as made
from tests.portal.jobs_world import make_project, make_user

pytestmark = [pytest.mark.bubblewrap, pytest.mark.django_db, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.HOME = tmp_path / "portal"
    settings.HOME.mkdir()
    tmp_path.chmod(0o755)
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path / "cache"))
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    # The host is this machine, whose only address may be one that no admin could allow.
    monkeypatch.setattr("portal.host_names._read_address", lambda name, **_: name)


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    return make_project(alice)


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    made_there = make_repository(tmp_path)
    made_there.commit({"train.py": "print('from git')\n", "conf/small.yaml": "lr: 0.1\n"}, "First")
    yield made_there


def work(tmp_path: Path) -> GitFetch:
    """Make the next fetch as a node does: what the portal orders, in a real sandbox."""
    claim = fetches.claim(made.make_node(f"n{GitFetch.objects.count()}"), ssh=True)
    assert claim is not None
    order, log = FetchOrder.from_json(claim.order), tmp_path / "log"
    try:
        with fetched(order, process_sandbox(sys.executable), sys.executable, log, lambda *_: None, ()) as commit:
            facts = fetches.details_of(commit.to_json())
            if commit.archive is None:
                fetches.finish_unchanged(claim.fetch, facts.commit)
            else:
                fetches.append_code(claim.fetch, 0, [commit.archive.read_bytes()])
                fetches.finish(claim.fetch, facts)
    except PrepareError as error:
        host_key = error.host_key if isinstance(error, HostKeyError) else ""
        fetches.fail(claim.fetch, error.failure.data(), host_key)
    claim.fetch.refresh_from_db()
    return claim.fetch


def test_https_from_a_commit_to_a_version(
    tmp_path: Path, alice: User, project: Project, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    with https_host(tmp_path) as host:
        monkeypatch.setenv("GIT_SSL_CAINFO", str(host.ca))
        made.allow(f"{own_address()}:{host.port}", internal=True, kind="gitea")
        made.bind(alice, project, host.address(), user=USER, token=TOKEN)
        fetches.request(alice, project)
        fetch = work(tmp_path)
        assert fetch.state == GitFetch.State.DONE, sentence_of(fetch.message)
        version = project.code_versions.get()
        assert [each["path"] for each in version.files] == ["conf/small.yaml", "train.py"]
        assert store.read_file(version, "train.py", 100) == b"print('from git')\n"
        assert version.origin.subject == "First" and version.origin.url.endswith(f"/lab/train/commit/{fetch.commit}")
        fetches.request(alice, project)
        assert work(tmp_path).state == GitFetch.State.UNCHANGED
        repository.rewrite({"train.py": "print('again')\n"})
        fetches.request(alice, project)
        fetch = work(tmp_path)
        assert "was rewritten" in sentence_of(fetch.message) and project.code_versions.count() == 2
        made.bind(alice, project, host.address(), token="wrong")
        fetches.request(alice, project)
        assert "does not accept the stored token" in sentence_of(work(tmp_path).message)


def test_ssh_from_a_key_to_a_version(tmp_path: Path, alice: User, project: Project, repository: Repository) -> None:
    with ssh_host(tmp_path) as host:
        made.allow(f"{own_address()}:{host.port}", internal=True)
        source = made.bind(alice, project, host.address())
        fetches.request(alice, project)
        assert keys.fingerprint(host.host_key) in sentence_of(work(tmp_path).message)
        source.refresh_from_db()
        sources.confirm_host_key(alice, source, keys.fingerprint(host.host_key))
        fetches.request(alice, project)
        assert "does not accept the deploy key" in sentence_of(work(tmp_path).message)
        host.allow(source.public_key)
        fetches.request(alice, project)
        fetch = work(tmp_path)
        assert fetch.state == GitFetch.State.DONE, sentence_of(fetch.message)
        assert project.code_versions.get().origin.author == "Ada Lovelace"
