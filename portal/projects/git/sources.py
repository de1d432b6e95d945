"""Binds projects to repositories: the address, how nodes sign in, which host key is confirmed, and the webhook."""

from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.projects.git import hosts, keys
from portal.projects.git.addresses import GitAddress, read_address, read_branch
from portal.projects.git.ending import end_open
from portal.projects.git.models import GitFetch, GitSource
from portal.projects.models import Project
from portal.projects.services import lock, require_member, require_owner
from portal.refused import Refused
from portal.sentences import agents

MAX_TOKEN = 10_000
DEFAULT_USER = "git"
"""With a token, most hosts ignore the user, but git needs one."""


@dataclass(frozen=True)
class SourceRequest:
    """What an owner typed. ``token`` None keeps the stored one; empty removes it."""

    address: str
    branch: str
    user: str = ""
    token: str | None = field(default=None, repr=False)
    extras: bool = False


def bind(user: User, project: Project, request: SourceRequest) -> GitSource:
    """Bind a project to a branch, or change what it is bound to. Raises Refused.

    A token or deploy key may open all that its owner sees at the host. Another owner of the project can use it for the
    repository for which it was stored, and no other: neither for another address, nor for submodules that were left out before.
    Another host gets neither it nor the host key.
    """
    require_owner(user, project)
    require_member(user, project)
    address, branch = read_address(request.address), read_branch(request.branch)
    host = hosts.require_host(address)
    if request.extras and not host.extras:
        raise Refused(f"No admin has allowed submodules and Git LFS from {address.place}.", "forbidden", "extras")
    name, token = request.user.strip(), request.token
    if len(name) > 200 or not name.isprintable() or ":" in name:
        raise Refused("A user name has at most 200 characters, and no colon.", field="user")
    if token is not None and (len(token) > MAX_TOKEN or not token.isprintable() or token != token.strip()):
        raise Refused(
            "That is not a token: it has spaces around it, line breaks or more than 10,000 characters.", field="token"
        )
    if token and address.scheme == "ssh":
        raise Refused("An ssh address is fetched with the deploy key. Leave the token empty.", field="token")
    sealed_token = keys.seal(token) if token else ""  # may write the key's file
    private, public = keys.make_deploy_key(f"schedulearn-project-{project.pk}") if address.scheme == "ssh" else ("", "")
    sealed_key = keys.seal(private)
    with transaction.atomic():
        require_member(user, lock(project))
        row = GitSource.objects.filter(project=project).first() or GitSource(project=project, hook=keys.new_hook())
        before, given = (_audited(row), _given(row)) if row.pk else ({}, None)
        same_host = bool(row.pk) and _place(row.address) == _place(str(address))
        same_reach = row.address == str(address) and (row.extras or not request.extras)
        keeps_access = same_host and (same_reach or row.access_by_id == user.pk)
        if token is not None or not keeps_access:
            row.sealed_token, row.access_by = sealed_token, user if token else None
        if not same_host:
            row.host_key = row.offered_host_key = ""
        row.address, row.branch, row.extras, row.bound_by = str(address), branch, request.extras, user
        row.user = (name or DEFAULT_USER) if row.sealed_token else ""
        if not row.is_ssh:
            row.sealed_key = row.public_key = ""
        elif not row.sealed_key or not keeps_access:
            row.sealed_key, row.public_key, row.access_by = sealed_key, public, user
        row.changed_at = timezone.now()
        row.save()
        after = _audited(row) | ({"new_token": True} if token else {})
        if before != after:
            audit(user, "git.bind", _target(project), before, after)
        if given != _given(row):
            kept = Q(
                state=GitFetch.State.WAITING, address=row.address, branch=row.branch
            )  # gets all else when a node asks
            end_open(project.fetches.exclude(kept), agents.git_failures.SourceChanged())
    return row


def _given(row: GitSource) -> tuple[str | bool, ...]:
    """Return what a node is given to fetch with, apart from the host key."""
    return row.address, row.branch, row.user, row.sealed_token, row.sealed_key, row.extras


def _place(address: str) -> tuple[str, str]:
    read = read_address(address)
    return read.scheme, read.place


def unbind(user: User, project: Project) -> None:
    """Forget the repository of a project, with its keys and its webhook, and end its fetch. Code versions stay."""
    require_owner(user, project)
    with transaction.atomic():
        lock(project)
        row = GitSource.objects.filter(project=project).first()
        if row is not None:
            audit(user, "git.unbind", _target(project), _audited(row))
            row.delete()
            end_open(project.fetches.all(), agents.git_failures.SourceChanged())


def confirm_host_key(user: User, source: GitSource, fingerprint: str) -> None:
    """Pin the key that the host had at the last fetch, if it is the one with this fingerprint. Raises Refused."""
    require_owner(user, source.project)
    with transaction.atomic():
        _lock(source)
        if not source.offered_host_key or keys.fingerprint(source.offered_host_key) != fingerprint:
            raise Refused(
                "The host has another key by now. Compare the fingerprint that the page shows, then confirm it.",
                "conflict",
            )
        before = {"host_key": keys.fingerprint(source.host_key)}
        source.host_key, source.offered_host_key = source.offered_host_key, ""
        source.save(update_fields=["host_key", "offered_host_key"])
        audit(user, "git.host_key", _target(source.project), before, {"host_key": fingerprint})


def new_deploy_key(user: User, source: GitSource) -> None:
    """Replace the deploy key; the old one cannot be used any more. Raises Refused."""
    require_owner(user, source.project)
    private, public = keys.make_deploy_key(f"schedulearn-project-{source.project_id}")
    sealed = keys.seal(private)
    with transaction.atomic():
        _lock(source)
        if not source.is_ssh:
            raise Refused("Only ssh addresses have a deploy key.", "conflict")
        source.sealed_key, source.public_key, source.access_by = sealed, public, user
        source.save(update_fields=["sealed_key", "public_key", "access_by"])
        running = source.project.fetches.filter(state=GitFetch.State.RUNNING)
        end_open(running, agents.git_failures.SourceChanged())
        audit(user, "git.new_key", _target(source.project))


def new_webhook_secret(user: User, source: GitSource) -> str:
    """Give the webhook a new secret and return it, which is the only time that it is seen. The address stays. Raises Refused."""
    require_owner(user, source.project)
    secret = keys.new_secret()
    sealed = keys.seal(secret)
    with transaction.atomic():
        _lock(source)
        source.sealed_secret = sealed
        source.save(update_fields=["sealed_secret"])
        audit(user, "git.webhook", _target(source.project))
    return secret


def remove_webhook(user: User, source: GitSource) -> None:
    """Let the webhook accept nothing any more. Raises Refused."""
    require_owner(user, source.project)
    with transaction.atomic():
        _lock(source)
        source.sealed_secret = ""
        source.save(update_fields=["sealed_secret"])
        audit(user, "git.no_webhook", _target(source.project))


def _lock(source: GitSource) -> None:
    """Lock the project of a source until the transaction ends, and read the source as it is now. Raises Refused if it is no more."""
    lock(source.project)
    try:
        source.refresh_from_db()
    except GitSource.DoesNotExist:
        raise Refused("The project is not bound to a repository any more. Reload the page.", "conflict") from None


def address_of(source: GitSource) -> GitAddress:
    return read_address(source.address)


def is_key_lost(source: GitSource) -> bool:
    """Whether what is encrypted cannot be read any more: the database was restored without the key."""
    return any(
        sealed and keys.unseal(sealed) is None
        for sealed in (source.sealed_token, source.sealed_key, source.sealed_secret)
    )


def _target(project: Project) -> str:
    return f"project {project.pk} {project.name}"[:200]


def _audited(row: GitSource) -> dict[str, Any]:
    return {
        "address": row.address,
        "branch": row.branch,
        "user": row.user,
        "has_token": bool(row.sealed_token),
        "extras": row.extras,
    }
