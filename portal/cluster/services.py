"""How machines join, and the actions of admins on nodes. Each action is recorded in the audit log in its transaction."""

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
MAX_TRIES = 5
SECRET_FIELDS = frozenset({"token_digest", "next_token_digest"})
"""The audit log never contains these."""


@dataclass(frozen=True, slots=True)
class JoinedNode:
    node: Node
    token: str
    """Sent to the machine once; only its digest is stored."""


# --- joining -----------------------------------------------------------------------------------------------------


@transaction.atomic
def issue_join_token(actor: User | None, *, approves: bool = False, lifetime: timedelta = JOIN_TOKEN_LIFETIME) -> str:
    """Create a one-time token for one new machine. Without an actor, the portal does it for the machine it runs on."""
    token = new_token()
    JoinToken.objects.create(
        token_digest=digest(token), created_by=actor, expires_at=timezone.now() + lifetime, approves=approves
    )
    audit(actor, "node.join_token", "a new node", after={"approves": approves})
    return token


@transaction.atomic
def issue_rejoin_token(actor: User, node: Node) -> str:
    """Create a token for a node whose own token was revoked or lost, with which it joins again as the same node."""
    row = _lock_node(node)
    token = new_token()
    JoinToken.objects.create(
        token_digest=digest(token),
        created_by=actor,
        expires_at=timezone.now() + JOIN_TOKEN_LIFETIME,
        renews=row,
    )
    audit(actor, "node.rejoin_token", row.name)
    return token


def join_token_with_node(token_id: int) -> tuple[JoinToken, Node | None] | None:
    """Return a join token and the node that has used it; None when there is no token with this id."""
    row = JoinToken.objects.select_related("node").filter(pk=token_id).first()
    return None if row is None else (row, row.node)


def token_id(token: str) -> int:
    """Return the id of a join token, by which a page asks later whether it was used."""
    return JoinToken.objects.values_list("pk", flat=True).get(token_digest=digest(token))


@transaction.atomic
def join(
    join_token: str, name: str, runtime: str, facts: dict[str, Any], problems: Sequence[dict[str, Any]] = ()
) -> JoinedNode:
    """Register the machine that holds a join token as a node.

    If the response is lost, the same machine may ask again until it has reported once: it gets a new token.
    """
    row = JoinToken.objects.select_for_update().filter(token_digest=digest(join_token)).first()
    if row is None or row.expires_at <= timezone.now():
        raise Refused(
            "This join token is unknown or has expired. Ask an admin for a new join command (Nodes, Add a node).",
            "forbidden",
        )
    check_runtime(runtime)
    name = clean_name(name)
    token = new_token()
    if row.renews is not None:
        return JoinedNode(_rejoin(row, row.renews, token), token)
    unconfined.check_node_can_join(runtime)
    if row.node is not None:
        if (
            row.node.last_seen_at is not None
            or row.node.removed_at is not None
            or row.node.facts.get("asked_name") != name
        ):
            raise Refused(
                "This join token was used already. Ask an admin for a new join command (Nodes, Add a node).",
                "forbidden",
            )
        Node.objects.filter(pk=row.node.pk).update(token_digest=digest(token))
        return JoinedNode(row.node, token)
    now = timezone.now()
    node = _create(
        name,
        runtime=runtime,
        token_digest=digest(token),
        # A machine with a blocking problem waits for an admin even if its token approves.
        approved_at=now if row.approves and not any(problem["blocking"] for problem in problems) else None,
        facts={**facts, "asked_name": name},
        problems=list(problems),
    )
    row.used_at, row.node = now, node
    row.save(update_fields=["used_at", "node"])
    audit(
        row.created_by, "node.joined", node.name, after={"runtime": runtime, "approved": node.approved_at is not None}
    )
    return JoinedNode(node, token)


def _rejoin(row: JoinToken, node: Node, token: str) -> Node:
    """Give a node a new token. May be repeated until the machine has reported, in case the response was lost."""
    has_reported = node.last_seen_at is not None and row.used_at is not None and node.last_seen_at > row.used_at
    if node.removed_at is not None or has_reported:
        raise Refused(
            "This join token was used already. Ask an admin for a new join command (Nodes, the node).", "forbidden"
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
            "The process runtime does not isolate jobs, so only a portal with SQLite accepts it. Install Docker Engine.",
            "forbidden",
        )


def clean_name(name: str) -> str:
    """Return the name of a machine in a form that is safe in pages and sentences."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:64] or "node"


def _create(name: str, **facts: Any) -> Node:
    """Create a node. If two machines with the same name join at the same moment, the later one gets a number."""
    for _ in range(MAX_TRIES):
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


def issue_requested_token(node: Node) -> str:
    """Return a new token for a node, if an admin has requested one. The old token works until the new one is first used."""
    token = new_token()
    requested = Node.objects.filter(pk=node.pk, rotation_asked_at__isnull=False, token_revoked_at=None)
    if not requested.update(next_token_digest=digest(token)):
        raise Refused("No new token was requested for this node.", "forbidden")
    return token


# --- actions of admins ----------------------------------------------------------------------------------------------


@transaction.atomic
def approve(actor: User | None, node: Node) -> Node:
    """Let a machine that has joined accept jobs, unless its own check found a blocking problem."""
    unfit = blocking_problems(_lock_node(node))
    if unfit and node.approved_at is None:
        raise Refused(f"{node.name} cannot be approved yet. {' '.join(unfit)}", "conflict")
    return _change(
        actor, node, "node.approved", approved_at=timezone.now() if node.approved_at is None else node.approved_at
    )


def cordon(actor: User | None, node: Node) -> Node:
    """Accept no new jobs; running jobs continue."""
    return _change(actor, node, "node.cordoned", cordoned=True)


def drain(actor: User | None, node: Node) -> Node:
    """Accept no new jobs; running jobs are stopped and restarted elsewhere."""
    return _change(actor, node, "node.drained", draining=True)


def resume(actor: User | None, node: Node) -> Node:
    """Accept jobs again."""
    return _change(actor, node, "node.resumed", cordoned=False, draining=False)


def rotate_token(actor: User | None, node: Node) -> Node:
    """Give the agent a new token with its next report; the old one works until the new one is used."""
    if node.token_revoked_at is not None:
        raise Refused(f"The token of {node.name} was revoked. Create a command with which it joins again.", "conflict")
    return _change(actor, node, "node.token_rotation_asked", rotation_asked_at=timezone.now())


def revoke_token(actor: User | None, node: Node) -> Node:
    """Invalidate the token at once: requests of the agent are refused, and the node's jobs restart elsewhere."""
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
    return [f"{each.text} {each.fix}".strip() for each in node.shown_problems if each.blocking]


def _lock_node(node: Node) -> Node:
    row = Node.objects.select_for_update().get(pk=node.pk)
    if row.removed_at is not None:
        raise Refused(f"{row.name} is no longer part of the lab.", "conflict")
    return row


@transaction.atomic
def remove(actor: User | None, node: Node) -> Node:
    """Remove a node without jobs from the lab. Its history stays, its token becomes invalid and its name free."""
    locked = Node.objects.select_for_update().get(pk=node.pk)
    busy = locked.containers.filter(exited_at__isnull=True).count()
    if busy:
        raise Refused(
            f"{locked.name} still runs {busy} container{'s' * (busy > 1)}. Drain it first, and remove it when it has no jobs.",
            "conflict",
        )
    name = f"{locked.name[:64]} (removed {locked.pk})"
    return _change(actor, node, "node.removed", removed_at=timezone.now(), name=name)


@transaction.atomic
def _change(actor: User | None, node: Node, action: str, **values: Any) -> Node:
    row = _lock_node(node)
    before = {name: _as_json_value(getattr(row, name)) for name in values if name not in SECRET_FIELDS}
    target = row.name
    for name, value in values.items():
        setattr(row, name, value)
        setattr(node, name, value)
    row.save(update_fields=list(values))
    after = {name: _as_json_value(value) for name, value in values.items() if name not in SECRET_FIELDS}
    audit(actor, action, target, before=before, after=after)
    wake_node(row.pk)
    wake_scheduler()
    return row


def _as_json_value(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def is_online(node: Node, now: datetime | None = None) -> bool:
    """Return whether the node has reported within the last seconds."""
    now = now or timezone.now()
    return node.last_seen_at is not None and now - node.last_seen_at <= timedelta(
        seconds=settings.NODE_LOST_AFTER_SECONDS
    )
