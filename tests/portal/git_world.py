"""Projects bound to repositories, and nodes that fetch from them, for tests."""

import io
import tarfile
from collections.abc import Mapping
from typing import Any

from django.utils import timezone

from portal.accounts.models import User
from portal.cluster.models import Node
from portal.projects.git import fetches, hosts, sources
from portal.projects.git.fetches import CommitFacts
from portal.projects.git.models import GitFetch, GitSource
from portal.projects.models import Project
from tests.portal.jobs_world import make_user

HTTPS = "https://github.com/lab/train.git"
SSH = "git@github.com:lab/train.git"
FIRST, SECOND = "1a" * 20, "2b" * 20
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


def make_admin() -> User:
    return User.objects.filter(username="ada").first() or make_user("ada", is_staff=True)


def allow(host: str = "github.com", **options: Any) -> None:
    hosts.allow(make_admin(), host, **options)


def bind(owner: User, project: Project, address: str = HTTPS, branch: str = "main", **options: Any) -> GitSource:
    """Bind a project; its host is allowed first."""
    if not hosts.GitHost.objects.exists():
        allow()
    return sources.bind(owner, project, sources.SourceRequest(address, branch, **options))


def archive(files: Mapping[str, str]) -> bytes:
    """Return an archive as nodes send it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


def make_node(name: str = "n1", **facts: Any) -> Node:
    """Return a node that can fetch from Git and has just reported."""
    return Node.objects.create(
        name=name,
        runtime=Node.Runtime.DOCKER,
        token_digest=f"{name:0<64}",
        approved_at=timezone.now(),
        last_seen_at=timezone.now(),
        facts={"git_format": 1, **facts},
    )


def start(node: Node, *, ssh: bool = True) -> GitFetch:
    """Return the fetch that a node is given."""
    claim = fetches.claim(node, ssh=ssh)
    assert claim is not None
    return claim.fetch


def finish(fetch: GitFetch, commit: str = FIRST, files: Mapping[str, str] | None = None, **facts: Any) -> GitFetch:
    """Send a commit, and return the fetch as it ended."""
    fetches.append_code(fetch, 0, [archive(files or {"train.py": f"print('{commit}')\n"})])
    values: dict[str, Any] = {"author": "Ada", "subject": "Train longer", "committed_at": 1_790_000_000}
    fetches.finish(fetch, CommitFacts(commit, **{**values, **facts}))
    fetch.refresh_from_db()
    return fetch


def fetch_commit(user: User, project: Project, node: Node, commit: str = FIRST, **facts: Any) -> GitFetch:
    """Fetch a commit for a project, which becomes its newest version."""
    fetches.request(user, project)
    return finish(start(node), commit, **facts)
