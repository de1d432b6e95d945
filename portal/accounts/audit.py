"""The audit log of privileged actions: one row in the same transaction as the action, which nothing can change later."""

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.db import transaction

from portal.accounts.models import AuditEntry, User


def last_actor(action: str, target: str, after: Mapping[str, Any]) -> str:
    """Return the name of the user whose action led to the present values, or "" if something else changed them."""
    entry = AuditEntry.objects.filter(action=action, target=target[:200]).select_related("actor").first()
    if entry is None or entry.actor is None or entry.after != after:
        return ""
    return entry.actor.username


def audit(
    actor: User | AnonymousUser | None,
    action: str,
    target: object,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> AuditEntry:
    """Record an action. ``before`` and ``after`` have what it changed, and never a secret.

    Call it inside the transaction of the action. Otherwise the action could be stored without its record.
    """
    if not transaction.get_connection().in_atomic_block:
        raise RuntimeError("audit() must be called inside transaction.atomic(), with the action it records")
    return AuditEntry.objects.create(
        actor=actor if isinstance(actor, User) else None,
        action=action,
        target=str(target)[:200],
        before=dict(before or {}),
        after=dict(after or {}),
    )
