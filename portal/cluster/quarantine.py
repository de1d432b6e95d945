"""Quarantine of faulty GPUs, which lasts until an admin ends it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from django.db import transaction
from django.utils import timezone

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.cluster.models import Gpu
from portal.refused import Refused
from portal.sentences import sentence_of
from portal.wake import wake_scheduler
from scheduling.messages import Message


@dataclass(frozen=True)
class Fault(Message):
    """Its driver has reported a grave error."""

    code: ClassVar[str] = "gpu_fault"
    fault: Any
    """A message of its agent, or a text: of an agent or of a row of the previous release."""


@dataclass(frozen=True)
class FailsJobs(Message):
    """Several jobs in a row failed as soon as they had started on it."""

    code: ClassVar[str] = "gpu_fails_jobs"
    jobs: int
    seconds: int


@dataclass(frozen=True)
class TakenOut(Message):
    """An admin has decided it."""

    code: ClassVar[str] = "gpu_taken_out"
    user: str


@transaction.atomic
def quarantine(gpu: Gpu, reason: Message, actor: User | None = None) -> bool:
    """Place no more jobs on a GPU; a running job continues. Return False when it was quarantined already."""
    row = Gpu.objects.select_for_update(of=("self",)).select_related("node").get(pk=gpu.pk)
    if row.quarantined_at is not None:
        return False
    row.quarantined_at, row.quarantine_reason = timezone.now(), reason.data()
    row.save(update_fields=["quarantined_at", "quarantine_reason"])
    audit(actor, "gpu.quarantined", _gpu_on_node(row), after={"reason": row.quarantine_reason})
    wake_scheduler()
    return True


@transaction.atomic
def release(actor: User, gpu: Gpu) -> Gpu:
    """End the quarantine of a GPU. Only new failures can cause another one."""
    row = Gpu.objects.select_for_update(of=("self",)).select_related("node").get(pk=gpu.pk)
    if row.quarantined_at is None:
        raise Refused(f"{_gpu_on_node(row)} is not in quarantine.", "conflict")
    before = row.quarantine_reason
    row.quarantined_at, row.quarantine_reason, row.trusted_since = None, "", timezone.now()
    row.save(update_fields=["quarantined_at", "quarantine_reason", "trusted_since"])
    audit(actor, "gpu.released", _gpu_on_node(row), before={"reason": before})
    wake_scheduler()
    return row


@transaction.atomic
def quarantine_by_admin(actor: User, gpu: Gpu) -> Gpu:
    """Quarantine a GPU by the decision of an admin."""
    if not quarantine(gpu, TakenOut(actor.username), actor):
        raise Refused(f"{gpu.label} is in quarantine already.", "conflict")
    return Gpu.objects.get(pk=gpu.pk)


def was_quarantined_for_fault_since(gpu: Gpu, moment: datetime) -> bool:
    """Return whether it was quarantined after that moment because its driver reported a grave error."""
    if gpu.quarantined_at is None or gpu.quarantined_at < moment:
        return False
    reason = gpu.quarantine_reason
    if isinstance(reason, str):  # the previous release stored sentences; that of a fault is the fault's
        return bool(gpu.fault) and reason == f"{sentence_of(gpu.fault)}."
    return bool(reason["code"] == Fault.code)


def same_fault(one: Any, other: Any) -> bool:
    """Return whether two reports are of the same fault. One may be of the previous release, which has only the text."""
    if isinstance(one, str) or isinstance(other, str):
        return sentence_of(one) == sentence_of(other)
    return bool(one == other)


def _gpu_on_node(gpu: Gpu) -> str:
    return f"{gpu.label} of {gpu.node.name}"
