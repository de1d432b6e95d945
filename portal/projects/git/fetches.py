"""Fetches of commits: who requests them, which node makes them, how far they are, and the code versions that they end with.

Nodes ask (``claim``). A project has one fetch that runs, and at most one that waits: for a node, and until that one has ended. A node
that stops sending progress loses its fetch to the next one that asks.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from portal import incoming, log_files
from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.cluster.models import LIVE_NODE, Node
from portal.projects import services
from portal.projects.git import hosts, keys
from portal.projects.git.addresses import commit_link, read_address
from portal.projects.git.ending import OPEN
from portal.projects.git.files import archive_path, log_path
from portal.projects.git.models import GitFetch, GitHost, GitSource, VersionCommit
from portal.projects.models import CodeVersion, Project
from portal.refused import Refused
from portal.sentences import agents

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=120)
"""A fetch is lost when its node has sent no progress for this time."""
MAX_TRIES = 3
"""A fetch that was given out so often, to one node or several, is not given out again: it may be what ends them."""
MAX_WAIT = timedelta(hours=12)
"""A fetch that no node has taken for so long is given up."""
MAX_TREE_MIB = 1024
"""How much the files of a commit may have, as those of an upload (``unpacking``)."""
FACT = "git_format"
"""The fact by which an agent shows that it can fetch from Git."""
MAX_REMARK = 200
MAX_COMMIT_TIME = datetime(2100, 1, 1, tzinfo=UTC)

State = GitFetch.State
Failure = agents.environment_failures.Failure


class FetchEndedError(Exception):
    """The fetch runs no longer: it was cancelled, replaced, or given to another node."""


class FetchRefusedError(Exception):
    """A fetch may not be made, or its result not be kept, for what has changed since its request."""

    def __init__(self, failure: Failure, state: State = State.CANCELLED) -> None:
        super().__init__(failure.text)
        self.failure, self.state = failure, state


# --- requests ----------------------------------------------------------------------------------------------------


def source_of(project: Project) -> GitSource:
    """Return what a project is bound to. Raises Refused."""
    row = GitSource.objects.filter(project=project).first()
    if row is None:
        raise Refused(
            f"“{project.name}” is not bound to a Git repository. An owner can bind it under Git on its page.",
            "conflict",
        )
    return row


def request(user: User, project: Project, cause: str = GitFetch.Cause.PAGE) -> GitFetch:
    """Request the newest commit of the branch. One that waits is returned instead of another. One that runs goes on, and the new one
    begins after it, because the branch may have moved since: a branch to which many push gets versions, too. Raises Refused."""
    with transaction.atomic():
        services.require_member(user, services.lock(project))
        source = source_of(project)
        hosts.require_host(read_address(source.address))
        waiting = project.fetches.filter(state=State.WAITING).select_related("requested_by").first()
        if waiting is not None and _gets_newest(waiting, source):
            return waiting
        if waiting is not None:
            _end(waiting, State.REPLACED, agents.git_failures.FetchReplaced())
        return GitFetch.objects.create(
            project=project,
            address=source.address,
            branch=source.branch,
            cause=cause,
            requested_by=user,
            message=agents.git.FetchWaiting().data(),
        )


def _is_of(fetch: GitFetch, source: GitSource) -> bool:
    return (fetch.address, fetch.branch) == (source.address, source.branch)


def _gets_newest(waiting: GitFetch, source: GitSource) -> bool:
    """Return whether a fetch that waits will get the newest commit of what a project is bound to."""
    may = services.may_submit(services.role_of(waiting.requested_by, source.project))
    return _is_of(waiting, source) and may


def _require_allowed(fetch: GitFetch) -> tuple[GitSource, GitHost]:
    """Return what a fetch is of, with its host. Raises FetchRefusedError if an admin, an owner or the requester has changed that
    since the request, and FetchEndedError."""
    fetch = _refreshed(fetch)
    project, user = fetch.project, fetch.requested_by
    if project.archived_at is not None:
        raise FetchRefusedError(agents.git_failures.ProjectArchived())
    if not services.may_submit(services.role_of(user, project)):
        raise FetchRefusedError(agents.git_failures.RequesterLeft(user.username))
    source = GitSource.objects.filter(project=project).first()
    if source is None or not _is_of(fetch, source):
        raise FetchRefusedError(agents.git_failures.SourceChanged())
    address = read_address(source.address)
    host = hosts.host_for(address)
    if host is None:
        raise FetchRefusedError(agents.git_failures.HostNotAllowed(address.place))
    return source, host


def _refreshed(fetch: GitFetch) -> GitFetch:
    row = GitFetch.objects.select_related("project", "requested_by").filter(pk=fetch.pk).first()
    if row is None:
        raise FetchEndedError
    return row


def cancel(user: User, fetch: GitFetch) -> bool:
    """Cancel a fetch; its node stops within seconds. Returns whether it was still open. Raises Refused."""
    services.require_member(user, fetch.project)
    with suppress(FetchEndedError), transaction.atomic():
        _end(_refreshed(fetch), State.CANCELLED, agents.git_failures.FetchCancelled(user.username))
        audit(user, "git.cancel", f"project {fetch.project_id} {fetch.project.name}"[:200], after={"fetch": fetch.pk})
        return True
    return False


def able_nodes() -> list[Node]:
    """Return the nodes that can fetch from Git and report."""
    since = timezone.now() - timedelta(seconds=settings.NODE_LOST_AFTER_SECONDS)
    rows = Node.objects.filter(LIVE_NODE, approved_at__isnull=False, last_seen_at__gt=since)
    return list(rows.filter(**{f"facts__{FACT}__gte": 1}).only("name", "facts", "last_seen_at"))


def count_waiting() -> int:
    """Return how many fetches wait for a node, or have lost theirs."""
    lost = Q(state=State.RUNNING, renewed_at__lt=timezone.now() - LEASE)
    return GitFetch.objects.filter(_is_next() | lost).count()


def _is_next() -> Q:
    """Return the condition for fetches that wait for a node alone, not for another of their project."""
    running = GitFetch.objects.filter(project=OuterRef("project"), state=State.RUNNING)
    return Q(~Exists(running), state=State.WAITING)


# --- nodes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """What a node fetches. It has secrets: for approved nodes only, and never for a log."""

    fetch: GitFetch
    order: dict[str, Any]


def claim(node: Node, *, ssh: bool) -> Claim | None:
    """Give a node the next fetch that it can make; None if there is none."""
    end_lost()
    own = GitFetch.objects.filter(node=node, state=State.RUNNING).first()
    if own is not None and own.tries >= MAX_TRIES:
        with suppress(FetchEndedError):
            _end(own, State.LOST, agents.git_failures.FetchLost(own.node_name))
        own = None
    if own is not None:
        waiting = [own]  # its agent was restarted, and begins again
    else:
        rows = GitFetch.objects.filter(_is_next()).order_by("pk")
        waiting = list(rows if ssh else rows.exclude(address__startswith="ssh://"))
    for fetch in waiting:
        if not _give(fetch, node):
            continue
        drop_files(fetch)
        with suppress(FetchEndedError):
            fetch = _refreshed(fetch)  # as it is given
            try:
                return Claim(fetch, _order(fetch))
            except FetchRefusedError as refusal:
                _end(fetch, refusal.state, refusal.failure)
    return None


def _give(fetch: GitFetch, node: Node) -> bool:
    """Give a fetch to a node, unless it, or another of its project, was given to one meanwhile. Returns whether it was."""
    now = timezone.now()
    try:
        with transaction.atomic():
            rows = GitFetch.objects.filter(pk=fetch.pk, state=fetch.state, node=fetch.node)
            return (
                rows.update(
                    state=State.RUNNING,
                    node=node,
                    node_name=node.name,
                    tries=fetch.tries + 1,
                    started_at=now,
                    renewed_at=now,
                    progress_percent=0,
                    message=agents.git.FetchStarting().data(),
                )
                > 0
            )
    except IntegrityError:
        return False


def _order(fetch: GitFetch) -> dict[str, Any]:
    """Return what a node needs. Raises FetchRefusedError and FetchEndedError."""
    source, host = _require_allowed(fetch)
    address = read_address(source.address)
    token, key = keys.unseal(source.sealed_token), keys.unseal(source.sealed_key)
    if token is None or key is None:
        lost = "the stored token or key cannot be read any more. An owner enters the token again, or makes a new key."
        raise FetchRefusedError(agents.git_failures.CodeNotAccepted(lost), State.FAILED)
    extras = source.extras and host.extras
    return {
        "fetch": fetch.pk,
        "address": source.address,
        "branch": source.branch,
        "known": _known_commit(source),
        "user": address.user if source.is_ssh else source.user,
        "token": token,
        "key": key if source.is_ssh else "",
        "host_key": source.host_key if source.is_ssh else "",
        "hosts": hosts.rules_for(address, host, extras=extras),
        "extras": extras,
        "max_mib": settings.GIT_MAX_MIB,
        "max_tree_mib": MAX_TREE_MIB,
        "seconds": settings.GIT_MAX_MINUTES * 60,
    }


def newest_commit(project: Project) -> VersionCommit | None:
    """Return the commit of the newest code version that was made from one."""
    rows = VersionCommit.objects.filter(version__project=project, version__deleted_at=None).select_related("version")
    return rows.order_by("-version__number").first()


def _known_commit(source: GitSource) -> str:
    last = newest_commit(source.project)
    return last.commit if last and (last.repository, last.branch) == (source.address, source.branch) else ""


def end_lost() -> None:
    """Let fetches whose nodes do not report any more wait for another node, a few times, and give up those that no node takes."""
    now = timezone.now()
    for fetch in GitFetch.objects.filter(state=State.RUNNING, renewed_at__lt=now - LEASE):
        with suppress(FetchEndedError):
            if fetch.tries >= MAX_TRIES:
                _end(fetch, State.LOST, agents.git_failures.FetchLost(fetch.node_name))
                continue
            if fetch.project.fetches.filter(state=State.WAITING).exists():
                _end(fetch, State.REPLACED, agents.git_failures.FetchReplaced())
            elif _let_wait(fetch):
                drop_files(fetch)
    for fetch in GitFetch.objects.filter(state=State.WAITING, requested_at__lt=now - MAX_WAIT):
        with suppress(FetchEndedError):
            _end(fetch, State.FAILED, agents.git_failures.FetchNotTaken(MAX_WAIT // timedelta(hours=1)))


def _let_wait(lost: GitFetch) -> bool:
    """Let a fetch wait for another node. Returns whether it does: its node may report again, and another may be requested."""
    try:
        with transaction.atomic():
            rows = _being_made(lost).filter(renewed_at=lost.renewed_at)
            return rows.update(state=State.WAITING, node=None, message=agents.git.FetchWaiting().data()) > 0
    except IntegrityError:
        return False


def running_fetch(node: Node, pk: int) -> GitFetch:
    """Return a fetch that this node makes. Raises FetchEndedError when it has ended."""
    rows = GitFetch.objects.filter(pk=pk, node=node, state=State.RUNNING)
    fetch = rows.select_related("project", "requested_by").first()
    if fetch is None:
        raise FetchEndedError
    return fetch


def _being_made(fetch: GitFetch) -> QuerySet[GitFetch]:
    """Return the row of a fetch while the node that was given it makes it."""
    return GitFetch.objects.filter(pk=fetch.pk, state=State.RUNNING, node=fetch.node_id, tries=fetch.tries)


def record_progress(fetch: GitFetch, percent: int, message: Any, offset: int, log: bytes) -> int:
    """Store how far a fetch is and the next piece of its log; return how many bytes of the log there are."""
    changed = _being_made(fetch).update(progress_percent=percent, message=message, renewed_at=timezone.now())
    if not changed:
        raise FetchEndedError
    return log_files.append(log_path(fetch), offset, log)


def append_code(fetch: GitFetch, offset: int, pieces: Any) -> int:
    """Append to the archive of a fetch. Raises FetchEndedError, OffsetMismatchError, or Refused for one that is too large."""
    file = archive_path(fetch)
    try:
        return incoming.append(file, offset, pieces, settings.MAX_UPLOAD_MIB << 20)
    finally:
        if not _being_made(fetch).update(renewed_at=timezone.now()):
            file.unlink(missing_ok=True)  # it ended while the piece arrived
            raise FetchEndedError


def drop_files(fetch: GitFetch) -> None:
    """Delete what has arrived of a fetch, before it begins again."""
    archive_path(fetch).unlink(missing_ok=True)
    log_path(fetch).unlink(missing_ok=True)


# --- how they end ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CommitFacts:
    """What a node reports of a commit. Authors and subjects were written by strangers."""

    commit: str
    author: str = ""
    subject: str = ""
    committed_at: int = 0
    rewritten: bool = False
    pointers: tuple[str, ...] = ()
    pointer_count: int = 0
    left_out: tuple[str, ...] = ()
    left_out_count: int = 0

    @property
    def time(self) -> datetime | None:
        """When it was committed; None for a time that cannot be, which would be out of range in some zones."""
        known = 0 < self.committed_at < MAX_COMMIT_TIME.timestamp()
        return datetime.fromtimestamp(self.committed_at, UTC) if known else None


def finish_unchanged(fetch: GitFetch, commit: str) -> None:
    """End a fetch whose branch is still at the commit of the newest code version."""
    try:
        with transaction.atomic():
            services.lock(fetch.project)
            source, _ = _require_allowed(fetch)
            last = newest_commit(fetch.project)
            if last is None or commit != _known_commit(source):
                raise Refused("No code version of this project has this commit.", "conflict")
            message = agents.git.CommitKnown(commit, last.version.number)
            _end(fetch, State.UNCHANGED, message, commit=commit, version=last.version)
    except FetchRefusedError as refusal:
        _end(fetch, refusal.state, refusal.failure)


def finish(fetch: GitFetch, facts: CommitFacts) -> None:
    """Make a code version of the archive that has arrived, or end the fetch with the reason why its files are not accepted."""
    file = archive_path(fetch)
    try:
        _require_allowed(fetch)
        if not file.exists():
            raise Refused("The archive of this commit has not arrived.", "conflict")
        with file.open("rb") as archive:
            name = read_address(fetch.address).name
            services.store_commit(
                fetch.requested_by,
                fetch.project,
                (f"{name.rpartition('/')[2]}.tar.gz", archive),
                f"{name} {facts.commit[:10]}",
                facts.subject,
                lambda version: _record(fetch, version, facts),
            )
    except FetchRefusedError as refusal:
        _end(fetch, refusal.state, refusal.failure)
    except Refused as refusal:
        fail(fetch, agents.git_failures.CodeNotAccepted(refusal.message).data())
    finally:
        file.unlink(missing_ok=True)


def _record(fetch: GitFetch, version: CodeVersion, facts: CommitFacts) -> None:
    """Note the commit of a new version, and end its fetch: in one transaction, so that one which was cancelled, or is not of what
    the project is bound to by now, makes no version."""
    _, host = _require_allowed(fetch)
    stored = agents.git.CommitStored(
        facts.commit,
        version.number,
        facts.rewritten,
        facts.pointers,
        facts.pointer_count,
        facts.left_out,
        facts.left_out_count,
    )
    if stored.remarks:
        version.guess["notes"] = [*version.guess.get("notes", []), *stored.remarks]
        version.save(update_fields=["guess"])
    VersionCommit.objects.create(
        version=version,
        commit=facts.commit,
        repository=fetch.address,
        branch=fetch.branch,
        author=_one_line(facts.author),
        subject=_one_line(facts.subject),
        committed_at=facts.time,
        url=commit_link(read_address(fetch.address), facts.commit, host.kind),
        rewritten=facts.rewritten,
    )
    _end(fetch, State.DONE, stored, commit=facts.commit, version=version)


def fail(fetch: GitFetch, message: Any, host_key: str = "") -> None:
    """Record why a fetch failed, and the key of its host that is to be confirmed. Raises FetchEndedError."""
    with transaction.atomic():
        if host_key and keys.HOST_KEY.fullmatch(host_key):
            rows = GitSource.objects.filter(project=fetch.project_id, address=fetch.address)
            rows.exclude(host_key=host_key).update(offered_host_key=host_key)
        _end(fetch, State.FAILED, message)


def _end(fetch: GitFetch, state: str, message: Any, **more: Any) -> None:
    """End an open fetch. Raises FetchEndedError if it has ended already, or another node has it."""
    changed = GitFetch.objects.filter(OPEN, pk=fetch.pk, node=fetch.node_id, tries=fetch.tries).update(
        state=state,
        message=message.data() if isinstance(message, agents.Message) else message,
        ended_at=timezone.now(),
        **more,
    )
    if not changed:
        raise FetchEndedError
    transaction.on_commit(partial(archive_path(fetch).unlink, missing_ok=True))


def _one_line(text: str) -> str:
    return "".join(c for c in " ".join(text.split()) if c.isprintable())[:200]


def details_of(answer: Mapping[str, Any]) -> CommitFacts:
    """Read what a node reports of a commit. Raises ValueError for what is not understood."""
    commit = answer.get("commit")
    if not isinstance(commit, str) or len(commit) not in (40, 64) or set(commit) - set("0123456789abcdef"):
        raise ValueError("commit must be a hash.")
    texts = {name: str(answer.get(name, ""))[:200] for name in ("author", "subject")}
    numbers: dict[str, int] = {}
    for name in ("committed_at", "pointer_count", "left_out_count"):
        value = answer.get(name, 0)
        if type(value) is not int or not 0 <= value < 2**40:
            raise ValueError(f"{name} must be a number.")
        numbers[name] = value
    lists: dict[str, tuple[str, ...]] = {}
    for name in ("pointers", "left_out"):
        value = answer.get(name, [])
        if not isinstance(value, list):
            raise ValueError(f"{name} must be a list.")
        lists[name] = tuple(str(each)[:MAX_REMARK] for each in value[:20])
    return CommitFacts(
        commit,
        texts["author"],
        texts["subject"],
        numbers["committed_at"],
        answer.get("rewritten") is True,
        lists["pointers"],
        numbers["pointer_count"],
        lists["left_out"],
        numbers["left_out_count"],
    )
