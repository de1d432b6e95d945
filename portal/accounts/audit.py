"""The trace of privileged acts: one row in the same transaction as the act, which no statement can change later."""

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.db import transaction

from portal.accounts.models import AuditEntry, User


def audit(
    actor: User | AnonymousUser | None,
    action: str,
    target: object,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> AuditEntry:
    """Writes down who did what to what. ``before`` and ``after`` hold what changed, and never a secret.

    Call it inside the transaction of the act: without one, an act could be kept and its trace lost.
    """
    if not transaction.get_connection().in_atomic_block:
        raise RuntimeError("audit() belongs inside transaction.atomic(), beside the act it records")
    return AuditEntry.objects.create(
        actor=actor if isinstance(actor, User) else None,
        action=action,
        target=str(target)[:200],
        before=dict(before or {}),
        after=dict(after or {}),
    )
