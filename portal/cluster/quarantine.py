"""Quarantine of faulty GPUs, which lasts until an admin ends it."""

from django.db import transaction
from django.utils import timezone

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.cluster.models import Gpu
from portal.refused import Refused
from portal.wake import wake_scheduler


@transaction.atomic
def quarantine(gpu: Gpu, reason: str, actor: User | None = None) -> bool:
    """Place no more jobs on a GPU; a running job continues. Return False when it was quarantined already."""
    row = Gpu.objects.select_for_update(of=("self",)).select_related("node").get(pk=gpu.pk)
    if row.quarantined_at is not None:
        return False
    row.quarantined_at, row.quarantine_reason = timezone.now(), reason[:300]
    row.save(update_fields=["quarantined_at", "quarantine_reason"])
    audit(actor, "gpu.quarantined", _named(row), after={"reason": row.quarantine_reason})
    wake_scheduler()
    return True


@transaction.atomic
def release(actor: User, gpu: Gpu) -> Gpu:
    """End the quarantine of a GPU. Only new failures can cause another one."""
    row = Gpu.objects.select_for_update(of=("self",)).select_related("node").get(pk=gpu.pk)
    if row.quarantined_at is None:
        raise Refused(f"{_named(row)} is not in quarantine.", "conflict")
    before = row.quarantine_reason
    row.quarantined_at, row.quarantine_reason, row.trusted_since = None, "", timezone.now()
    row.save(update_fields=["quarantined_at", "quarantine_reason", "trusted_since"])
    audit(actor, "gpu.released", _named(row), before={"reason": before})
    wake_scheduler()
    return row


@transaction.atomic
def take_out(actor: User, gpu: Gpu) -> Gpu:
    """Quarantine a GPU by the decision of an admin."""
    if not quarantine(gpu, f"Taken out of use by {actor.username}.", actor):
        raise Refused(f"{gpu.label} is in quarantine already.", "conflict")
    return Gpu.objects.get(pk=gpu.pk)


def _named(gpu: Gpu) -> str:
    return f"{gpu.label} of {gpu.node.name}"
