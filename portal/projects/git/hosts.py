"""The hosts that code may be fetched from: what admins do with them, and which apply to a repository."""

from django.db import IntegrityError, transaction

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.host_names import HostError, InternalHostError, read_host
from portal.names import has_invisible_characters
from portal.projects.git.addresses import DEFAULT_PORTS, GitAddress, read_address
from portal.projects.git.ending import OPEN, end_open
from portal.projects.git.models import GitFetch, GitHost
from portal.refused import Refused
from portal.sentences import agents

MAX_HOSTS = 100
MAX_NOTE = 200
MAX_NAMED = 10
"""How many hosts a sentence names."""


def allow(
    user: User,
    typed: str,
    *,
    internal: bool = False,
    extras: bool = False,
    kind: str = GitHost.Kind.OTHER,
    note: str = "",
) -> GitHost:
    """Allow a host. Raises Refused."""
    _require_admin(user)
    try:
        host = str(read_host(typed, internal=internal))
    except InternalHostError as error:
        raise Refused(str(error).replace("jobs may reach it", "nodes may fetch from it"), field="internal") from error
    except HostError as error:
        raise Refused(str(error), field="host") from error
    if kind not in GitHost.Kind.values:
        raise Refused(f"Choose one of {', '.join(GitHost.Kind.values)}.", field="kind")
    note = note.strip()
    if len(note) > MAX_NOTE or has_invisible_characters(note):
        raise Refused(f"A note is one line of at most {MAX_NOTE} characters.", field="note")
    if GitHost.objects.count() >= MAX_HOSTS:
        raise Refused(f"{MAX_HOSTS} hosts are allowed, the maximum. Remove one first.", "conflict")
    row = GitHost(host=host, internal=internal, extras=extras, kind=kind, note=note, created_by=user)
    try:
        with transaction.atomic():
            row.save()
            audit(user, "git_host.allow", f"githost {host}"[:200], after=_audited(row))
    except IntegrityError as error:
        raise Refused(f"{host} is allowed already. Remove it first to change it.", "conflict", field="host") from error
    return row


def forbid(user: User, row: GitHost) -> None:
    """Remove a host: nothing is fetched from it any more, and what is being fetched from it ends. Code versions stay. Raises
    Refused."""
    _require_admin(user)
    with transaction.atomic():
        if not GitHost.objects.filter(pk=row.pk).delete()[0]:
            return
        audit(user, "git_host.forbid", f"githost {row.host}"[:200], before=_audited(row))
        left = list(GitHost.objects.all())
        for pk, written in list(GitFetch.objects.filter(OPEN).values_list("pk", "address")):
            address = read_address(written)
            if not any(covers(each, address.host, address.real_port) for each in left):
                end_open(GitFetch.objects.filter(pk=pk), agents.git_failures.HostNotAllowed(address.place))
        if row.extras:  # nodes may be fetching a submodule or a file of Git LFS from it
            given = GitFetch.objects.filter(state=GitFetch.State.RUNNING, project__git__extras=True)
            end_open(given, agents.git_failures.HostNotAllowed(row.host))


def host_for(address: GitAddress) -> GitHost | None:
    """Return the allowed host that an address is on; None if there is none."""
    return next((row for row in GitHost.objects.all() if covers(row, address.host, address.real_port)), None)


def require_host(address: GitAddress) -> GitHost:
    """Return the allowed host of an address. Raises Refused with a sentence for its field."""
    row = host_for(address)
    if row is None:
        known = [each.host for each in GitHost.objects.all()]
        rest = f" and {len(known) - MAX_NAMED} more" if len(known) > MAX_NAMED else ""
        allowed = f"Allowed hosts: {', '.join(known[:MAX_NAMED])}{rest}." if known else "No host is allowed yet."
        raise Refused(
            f"Code may not be fetched from {address.place}. {allowed} An admin can allow {address.place} under Admin > Git hosts.",
            "forbidden",
            "address",
        )
    return row


def covers(row: GitHost, host: str, port: int) -> bool:
    name, _, own_port = row.host.partition(":")
    if port not in ({int(own_port)} if own_port else DEFAULT_PORTS.values()):
        return False
    return host.endswith(name[1:]) if name.startswith("*.") else host == name


def rules_for(address: GitAddress, row: GitHost, *, extras: bool) -> list[str]:
    """Return the hosts that a fetch may reach, as an agent reads them: that of the repository, and with ``extras`` those that
    submodules and files of Git LFS may come from."""
    rules = [_rule(f"{address.host}:{address.real_port}", internal=row.internal)]
    if extras:
        for each in GitHost.objects.filter(extras=True):
            name, _, port = each.host.partition(":")
            ports = [port] if port else map(str, DEFAULT_PORTS.values())
            rules += [_rule(f"{name}:{number}", internal=each.internal) for number in ports]
    return list(dict.fromkeys(rules))


def _rule(place: str, *, internal: bool) -> str:
    return f"{place} internal" if internal else place


def _require_admin(user: User) -> None:
    if not user.is_admin:
        raise Refused("Only admins decide which hosts code may be fetched from.", "forbidden")


def _audited(row: GitHost) -> dict[str, object]:
    return {"internal": row.internal, "extras": row.extras, "kind": row.kind, "note": row.note}
