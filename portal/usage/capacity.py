"""Records when each GPU was part of the lab, and which weights were in force: other apps store only the present state."""

from collections.abc import Collection
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from portal.accounts.models import Limit
from portal.cluster.models import Gpu, Node
from portal.usage.models import CapacitySpell, ShareWeight

SILENT_AFTER = timedelta(minutes=2)
"""A node that is silent for longer no longer offers its GPUs, from its last report on."""


@transaction.atomic
def record(now: datetime | None = None, nodes: Collection[int] | None = None) -> int:
    """Record what has changed since the last call, for all nodes or for some; return how many spells began or ended.

    May be repeated and may run twice at once. A node that was there before the first call counts from its approval on.
    """
    now = now or timezone.now()
    machines = Node.objects.filter(approved_at__isnull=False)
    if nodes is not None:
        machines = machines.filter(pk__in=nodes)
    gpus = list(Gpu.objects.filter(node__in=machines).select_related("node").order_by("pk"))
    known = set(CapacitySpell.objects.filter(gpu__in=gpus).values_list("gpu__node", flat=True).distinct())
    live = {
        spell.gpu_id: spell
        # Locks its own rows only, in one order: a node's report locks those of its GPUs.
        for spell in CapacitySpell.objects.filter(gpu__node__in=machines, until__isnull=True)
        .order_by("pk")
        .select_for_update(of=("self",))
    }
    begun, ended = [], []
    for gpu in gpus:
        end = _offer_end(gpu, now)
        spell = live.get(gpu.pk)
        if spell is not None and end is not None:
            spell.until = max(spell.since, end)
            ended.append(spell)
        elif spell is None and gpu.node_id not in known:
            since = gpu.node.approved_at or now
            begun.append(CapacitySpell(gpu=gpu, since=since, until=None if end is None else max(since, end)))
        elif spell is None and end is None:
            begun.append(CapacitySpell(gpu=gpu, since=now))
    CapacitySpell.objects.bulk_update(ended, ["until"])
    CapacitySpell.objects.bulk_create(begun, ignore_conflicts=True)
    return len(begun) + len(ended)


def _offer_end(gpu: Gpu, now: datetime) -> datetime | None:
    """Return the time since which a GPU is not offered; None when it is offered."""
    node = gpu.node
    if node.removed_at is not None:
        return min(node.removed_at, now)
    if node.last_seen_at is None or now - node.last_seen_at > SILENT_AFTER:
        return node.last_seen_at or now
    return None if gpu.present and gpu.healthy and gpu.quarantined_at is None else now


@transaction.atomic
def record_weights(now: datetime | None = None) -> int:
    """Record weights that differ from the last recorded ones; return how many."""
    now = now or timezone.now()
    recorded = {(row.user_id, row.group_id): row.weight for row in ShareWeight.objects.order_by("since", "id")}
    current = {(row.user_id, row.group_id): row.weight for row in Limit.objects.all()}
    changed = [
        ShareWeight(user_id=key[0], group_id=key[1], weight=current.get(key, 1.0), since=now)
        for key in sorted(recorded.keys() | current.keys(), key=str)
        if current.get(key, 1.0) != recorded.get(key, 1.0)
    ]
    ShareWeight.objects.bulk_create(changed)
    return len(changed)
