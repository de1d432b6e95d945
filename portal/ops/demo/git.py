"""A project that is bound to a repository, with code versions of its commits. Nothing is fetched: nodes of a demo cannot."""

import io
import tarfile
from datetime import datetime, timedelta

from portal.accounts.models import AuditEntry, User
from portal.cluster.models import Node
from portal.ops.demo.workload import DAY
from portal.projects import examples
from portal.projects.git import keys
from portal.projects.git.addresses import commit_link, read_address
from portal.projects.git.models import GitFetch, GitHost, GitSource, VersionCommit
from portal.projects.models import CodeVersion, Project
from portal.projects.services import store_commit
from portal.sentences import agents

PROJECT = "Street scenes"
HOST = "git.example.org"
ADDRESS, BRANCH = f"https://{HOST}/vision/street-scenes.git", "main"
AUTHORS = ("Gil <gil@demo.invalid>", "Bela <bela@demo.invalid>")
COMMITS = (
    (8.4, "Warm the learning rate up", "5e1f0c7a92b4d6380f1e2d3c4b5a69788796a5b4", ("lr=2e-3", "lr=1e-3")),
    (20.7, "Use larger batches", "c03a7be1f5d24968a0b1c2d3e4f5061728394a5b", ("default=32", "default=64")),
)
"""(Days since the start of the month; the first line; the hash; what it replaces in the code and with what)."""


def bind_to_repository(
    admin: User, owner: User, project: Project, example: str, node: Node, start: datetime
) -> list[CodeVersion]:
    """Bind a project to a repository, and make code versions of two commits in the month that begins at ``start``."""
    address = read_address(ADDRESS)
    bound_at = start + timedelta(days=COMMITS[0][0] - 1)
    host = GitHost.objects.create(
        host=HOST, kind=GitHost.Kind.GITEA, note="The repositories of the lab", created_by=admin, created_at=bound_at
    )
    GitSource.objects.create(
        project=project, address=ADDRESS, branch=BRANCH, hook=keys.new_hook(), bound_by=owner, changed_at=bound_at
    )
    after = {"address": ADDRESS, "branch": BRANCH}
    AuditEntry.objects.create(at=bound_at, actor=admin, action="git_host.allow", target=f"githost {HOST}")
    AuditEntry.objects.create(
        at=bound_at, actor=owner, action="git.bind", target=f"project {project.pk} {project.name}", after=after
    )
    made: list[CodeVersion] = []
    edits: list[tuple[str, str]] = []
    for author, (days, subject, commit, edit) in zip(AUTHORS, COMMITS, strict=True):
        edits.append(edit)
        at = start + timedelta(seconds=days * DAY)

        def record(version: CodeVersion, commit: str = commit, subject: str = subject, author: str = author) -> None:
            VersionCommit.objects.create(
                version=version, commit=commit, repository=ADDRESS, branch=BRANCH, author=author, subject=subject,
                committed_at=at - timedelta(minutes=4), url=commit_link(address, commit, host.kind),  # noqa: B023
            )  # fmt: skip

        name = f"{address.name} {commit[:10]}"
        archive = ("street-scenes.tar.gz", _archive(example, edits))
        version = store_commit(owner, project, archive, name, subject, record)
        CodeVersion.objects.filter(pk=version.pk).update(created_at=at)
        version.created_at = at
        fetch = GitFetch(
            project=project, address=ADDRESS, branch=BRANCH, cause=GitFetch.Cause.PAGE, requested_by=owner,
            state=GitFetch.State.DONE, node=node, node_name=node.name, tries=1, progress_percent=100,
            message=agents.git.CommitStored(commit, version.number).data(), commit=commit, version=version,
            requested_at=at - timedelta(seconds=9), started_at=at - timedelta(seconds=8), ended_at=at,
        )  # fmt: skip
        GitFetch.objects.bulk_create([fetch])
        made.append(version)
    return made


def _archive(key: str, edits: list[tuple[str, str]]) -> io.BytesIO:
    """Return the code of an example with these changes, as git archives a commit."""
    example = examples.find(key)
    assert example is not None  # noqa: S101  # it ships with the portal
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, path in example.files():
            text = path.read_text()
            for old, new in edits:
                text = text.replace(old, new)
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    packed.seek(0)
    return packed
