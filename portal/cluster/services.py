"""How machines join, and what admins do with them. Each act of an admin leaves its trace in the same transaction."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from portal.accounts.audit import audit
from portal.accounts.models import User, digest
from portal.cluster import unconfined
from portal.cluster.models import LIVE_NODE, JoinToken, Node, new_token
from portal.refused import Refused
from portal.wake import wake_node, wake_scheduler

JOIN_TOKEN_LIFETIME = timedelta(hours=1)
TRIES = 5
SECRET = frozenset({"token_digest", "next_token_digest"})
"""No trace of an act names these."""


@dataclass(frozen=True, slots=True)
class Joined:
    node: Node
    token: str
    """Shown to the machine once; only its digest is kept."""


# --- joining -----------------------------------------------------------------------------------------------------


@transaction.atomic
def issue_join_token(actor: User | None, *, approves: bool = False, lifetime: timedelta = JOIN_TOKEN_LIFETIME) -> str:
    """A one-time token for one new machine. No actor: the portal itself, for the machine it runs on."""
    token = new_token()
    JoinToken.objects.create(
        token_digest=digest(token), created_by=actor, expires_at=timezone.now() + lifetime, approves=approves
    )
    audit(actor, "node.join_token", "a new node", after={"approves": approves})
    return token


@transaction.atomic
def issue_rejoin_token(actor: User, node: Node) -> str:
    """For a machine that is part of the lab and whose token was revoked or lost: it comes back as the same node."""
    row = _locked(node)
    token = new_token()
    JoinToken.objects.create(
        token_digest=digest(token),
        created_by=actor,
        expires_at=timezone.now() + JOIN_TOKEN_LIFETIME,
        renews=row,
    )
    audit(actor, "node.rejoin_token", row.name)
    return token


def joined_by(token_id: int) -> tuple[JoinToken, Node | None] | None:
    """A join token by its id, and the machine that has used it; None when there is no such token."""
    row = JoinToken.objects.select_related("node").filter(pk=token_id).first()
    return None if row is None else (row, row.node)


def token_id(token: str) -> int:
    """By which a page asks later whether a join token was used."""
    return JoinToken.objects.values_list("pk", flat=True).get(token_digest=digest(token))


@transaction.atomic
def join(
    join_token: str, name: str, runtime: str, facts: dict[str, Any], problems: Sequence[dict[str, Any]] = ()
) -> Joined:
    """Enrols the machine that holds a join token.

    When the answer was lost, the same machine may ask again until it has been heard of: it gets a new token.
    """
    row = JoinToken.objects.select_for_update().filter(token_digest=digest(join_token)).first()
    if row is None or row.expires_at <= timezone.now():
        raise Refused(
            "This join token is unknown or has expired. Ask an admin for a new one (Nodes, Add a node).", "forbidden"
        )
    check_runtime(runtime)
    name = clean_name(name)
    token = new_token()
    if row.renews is not None:
        return Joined(_rejoin(row, row.renews, token), token)
    unconfined.check_joining(runtime)
    if row.node is not None:
        if (
            row.node.last_seen_at is not None
            or row.node.removed_at is not None
            or row.node.facts.get("asked_name") != name
        ):
            raise Refused(
                "This join token was used already. Ask an admin for a new one (Nodes, Add a node).", "forbidden"
            )
        Node.objects.filter(pk=row.node.pk).update(token_digest=digest(token))
        return Joined(row.node, token)
    now = timezone.now()
    node = _create(
        name,
        runtime=runtime,
        token_digest=digest(token),
        # A machine that is unsafe waits for an admin, whatever its token says.
        approved_at=now if row.approves and not any(problem["blocking"] for problem in problems) else None,
        facts={**facts, "asked_name": name},
        problems=list(problems),
    )
    row.used_at, row.node = now, node
    row.save(update_fields=["used_at", "node"])
    audit(
        row.created_by, "node.joined", node.name, after={"runtime": runtime, "approved": node.approved_at is not None}
    )
    return Joined(node, token)


def _rejoin(row: JoinToken, node: Node, token: str) -> Node:
    """May be repeated while nothing was heard of the machine since, in case the answer was lost."""
    heard = node.last_seen_at is not None and row.used_at is not None and node.last_seen_at > row.used_at
    if node.removed_at is not None or heard:
        raise Refused(
            "This join token was used already. Ask an admin for a new one (Nodes, the node, Make a line).", "forbidden"
        )
    Node.objects.filter(pk=node.pk).update(
        token_digest=digest(token), next_token_digest=None, rotation_asked_at=None, token_revoked_at=None
    )
    row.used_at, row.node = timezone.now(), node
    row.save(update_fields=["used_at", "node"])
    audit(row.created_by, "node.rejoined", node.name)
    return node


def check_runtime(runtime: str) -> None:
    if runtime not in Node.Runtime.values:
        raise Refused(f"The runtime must be one of: {', '.join(Node.Runtime.values)}.")
    if runtime == Node.Runtime.PROCESS and settings.LAB:
        raise Refused(
            "The process runtime keeps jobs apart from nothing, so only a portal on SQLite takes it. Install a Docker Engine.",
            "forbidden",
        )


def clean_name(name: str) -> str:
    """A machine's name for pages and sentences."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:64] or "node"


def _create(name: str, **facts: Any) -> Node:
    """Two machines of one name may join at the same moment, with a token each: the later one takes the next name."""
    for _ in range(TRIES):
        try:
            with transaction.atomic():
                return Node.objects.create(name=_free_name(name), **facts)
        except IntegrityError:
            continue
    raise Refused(f"Too many machines called {name} join at once. Try again in a moment.", "conflict")


def _free_name(name: str) -> str:
    taken = set(Node.objects.filter(name__startswith=name).values_list("name", flat=True))
    numbered = (f"{name}-{number}" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(other for other in numbered if other not in taken)


def node_for(token: str) -> Node | None:
    """Return the registered machine that holds this token. The first use of a new token ends the old one."""
    token_digest = digest(token)
    node = Node.objects.filter(LIVE_NODE & (Q(token_digest=token_digest) | Q(next_token_digest=token_digest))).first()
    if node is not None and node.token_digest != token_digest:
        values = {"token_digest": token_digest, "next_token_digest": None, "rotation_asked_at": None}
        if not Node.objects.filter(pk=node.pk, next_token_digest=token_digest).update(**values):
            return Node.objects.filter(LIVE_NODE, token_digest=token_digest).first()  # just used or revoked
        for name, value in values.items():
            setattr(node, name, value)
    return node


def give_new_token(node: Node) -> str:
    """A token in place of the one in use, which works until the new one is first used. Only when an admin asked for it."""
    token = new_token()
    asked = Node.objects.filter(pk=node.pk, rotation_asked_at__isnull=False, token_revoked_at=None)
    if not asked.update(next_token_digest=digest(token)):
        raise Refused("Nobody has asked for a new token of this node.", "forbidden")
    return token


# --- what admins do ----------------------------------------------------------------------------------------------


@transaction.atomic
def approve(actor: User | None, node: Node) -> Node:
    """Lets a machine that joined take work, unless its own check says that this would be unsafe or no use."""
    unfit = blocking_problems(_locked(node))
    if unfit and node.approved_at is None:
        raise Refused(f"{node.name} cannot be approved yet. {' '.join(unfit)}", "conflict")
    return _change(
        actor, node, "node.approved", approved_at=timezone.now() if node.approved_at is None else node.approved_at
    )


def cordon(actor: User | None, node: Node) -> Node:
    """No new work; what runs goes on."""
    return _change(actor, node, "node.cordoned", cordoned=True)


def drain(actor: User | None, node: Node) -> Node:
    """No new work, and what runs is stopped and placed elsewhere."""
    return _change(actor, node, "node.drained", draining=True)


def resume(actor: User | None, node: Node) -> Node:
    """Takes work again."""
    return _change(actor, node, "node.resumed", cordoned=False, draining=False)


def rotate_token(actor: User | None, node: Node) -> Node:
    """The agent takes a new token with its next report; the old one works until the new one is used."""
    if node.token_revoked_at is not None:
        raise Refused(f"{node.name} has no token any more. Make a line with which it joins again.", "conflict")
    return _change(actor, node, "node.token_rotation_asked", rotation_asked_at=timezone.now())


def revoke_token(actor: User | None, node: Node) -> Node:
    """At once: nothing that its agent sends is taken, and its jobs are run elsewhere."""
    return _change(
        actor,
        node,
        "node.token_revoked",
        token_revoked_at=timezone.now(),
        rotation_asked_at=None,
        token_digest=f"revoked:{secrets.token_hex(16)}",  # no token has this digest
        next_token_digest=None,
    )


def blocking_problems(node: Node) -> list[str]:
    """Return the problems that must be fixed before the node takes work, as sentences that include the fix."""
    blocking = (each for each in node.problems if each.get("blocking"))
    return [f"{each.get('text')} {each.get('fix') or each.get('mend') or ''}".strip() for each in blocking]


def _locked(node: Node) -> Node:
    row = Node.objects.select_for_update().get(pk=node.pk)
    if row.removed_at is not None:
        raise Refused(f"{row.name} is no longer part of the lab.", "conflict")
    return row


@transaction.atomic
def remove(actor: User | None, node: Node) -> Node:
    """Takes an empty machine out of the lab; its history stays. Its token stops working.

    The name becomes free for the next machine.
    """
    locked = Node.objects.select_for_update().get(pk=node.pk)
    busy = locked.containers.filter(exited_at__isnull=True).count()
    if busy:
        raise Refused(
            f"{locked.name} still runs {busy} container{'s' * (busy > 1)}. Drain it first, and remove it when it is empty.",
            "conflict",
        )
    name = f"{locked.name[:64]} (removed {locked.pk})"
    return _change(actor, node, "node.removed", removed_at=timezone.now(), name=name)


@transaction.atomic
def _change(actor: User | None, node: Node, action: str, **values: Any) -> Node:
    row = _locked(node)
    before = {name: _plain(getattr(row, name)) for name in values if name not in SECRET}
    target = row.name
    for name, value in values.items():
        setattr(row, name, value)
        setattr(node, name, value)
    row.save(update_fields=list(values))
    after = {name: _plain(value) for name, value in values.items() if name not in SECRET}
    audit(actor, action, target, before=before, after=after)
    wake_node(row.pk)
    wake_scheduler()
    return row


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def is_online(node: Node, now: datetime | None = None) -> bool:
    """Heard of within the last seconds."""
    now = now or timezone.now()
    return node.last_seen_at is not None and now - node.last_seen_at <= timedelta(
        seconds=settings.NODE_LOST_AFTER_SECONDS
    )
