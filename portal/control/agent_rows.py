"""The few statements that nearly every report of an agent comes to, in plain SQL for PostgreSQL and SQLite.

Hundreds of nodes report every few seconds, and Django needs five times as long to put such a statement together as the
database to carry it out. What happens more seldom goes by the models, as everywhere else.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from portal.cluster.models import Node
from portal.gauges import sampling
from portal.gauges.sampling import Reading


@dataclass(frozen=True, slots=True)
class Caller:
    """The node that asks, as much of it as its answer depends on."""

    pk: int
    approved: bool
    rotate: bool
    said: str = ""
    """``Node.said``, and only while the node has not been away: then a report that says the same changes nothing."""
    sample_due: bool = True

    @classmethod
    def of(cls, node: Node) -> "Caller":
        approved = node.approved_at is not None and node.removed_at is None
        return cls(node.pk, approved, node.rotation_asked_at is not None)


@dataclass(frozen=True, slots=True)
class Part:
    """A container that its node is told of."""

    name: str
    attempt: int
    epoch: int
    role: str
    state: str
    detail: str
    wanted: str
    stop_reason: str
    batch: int
    spec: dict[str, Any]


CALLER = """
SELECT id, approved_at IS NOT NULL, rotation_asked_at IS NOT NULL,
       CASE WHEN last_seen_at >= %s THEN said ELSE '' END, last_seen_at IS NULL OR last_seen_at < %s
FROM cluster_node WHERE token_digest = %s AND removed_at IS NULL
"""
SEE = "UPDATE cluster_node SET last_seen_at = %s WHERE id = %s"
PARTS = """
SELECT part.name, part.attempt_id, attempt.number, part.role, part.state, part.detail, part.wanted, part.stop_reason,
       COALESCE(chosen.batch, 0), part.spec
FROM jobs_container AS part
JOIN jobs_attempt AS attempt ON attempt.id = part.attempt_id
LEFT JOIN control_chosenbatch AS chosen ON chosen.attempt_id = part.attempt_id
WHERE part.node_id = %s AND (
    (part.state <> 'EXITED' AND (part.stop_requested_at IS NULL OR part.stop_requested_at > %s))
    OR (part.collected_at IS NULL AND part.exited_at > %s)
)
ORDER BY part.id
"""
GPUS = "SELECT id, uuid FROM cluster_gpu WHERE node_id = %s ORDER BY id"
READ = """
UPDATE cluster_gpu SET
    utilisation_percent = CAST(said.column2 AS smallint),
    memory_used_mib = CAST(said.column3 AS integer),
    temperature_celsius = CAST(said.column4 AS smallint)
FROM (VALUES {}) AS said WHERE cluster_gpu.id = said.column1
"""
SAMPLE = "INSERT INTO gauges_sample (node_id, at, readings) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"


def caller(token_digest: str, now: datetime) -> Caller | None:
    heard_since = now - timedelta(seconds=settings.NODE_LOST_AFTER_SECONDS)
    with connection.cursor() as cursor:
        cursor.execute(CALLER, [_moment(heard_since), _moment(sampling.slot_of(now)), token_digest])
        row = cursor.fetchone()
    return None if row is None else Caller(row[0], bool(row[1]), bool(row[2]), row[3], bool(row[4]))


def see(node_id: int, now: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute(SEE, [_moment(now), node_id])


def parts(node_id: int, stoppable_since: datetime, collectable_since: datetime) -> list[Part]:
    """Those that live, unless they were told to stop before ``stoppable_since``; those that ended after
    ``collectable_since`` and are not collected."""
    with connection.cursor() as cursor:
        cursor.execute(PARTS, [node_id, _moment(stoppable_since), _moment(collectable_since)])
        rows = cursor.fetchall()
    return [Part(*(*row[:-1], json.loads(row[-1]))) for row in rows]


@transaction.atomic
def write_readings(node_id: int, said: Mapping[str, tuple[int | None, int | None, int | None]], now: datetime) -> None:
    """What GPUs read now, by UUID: onto their rows, and as the sample of this slot."""
    # Their rows are locked in the order of their ids, as the scheduler does. SQLite has one writer and no such lock.
    lock = " FOR NO KEY UPDATE" if connection.vendor == "postgresql" else ""
    with connection.cursor() as cursor:
        cursor.execute(GPUS + lock, [node_id])
        readings = [Reading(pk, *said[uuid]) for pk, uuid in cursor.fetchall() if uuid in said]
        if not readings:
            return
        values = ", ".join(["(%s, %s, %s, %s)"] * len(readings))
        cursor.execute(READ.format(values), [value for reading in readings for value in reading])
        if sample := sampling.sample_of(readings):
            cursor.execute(SAMPLE, [node_id, _moment(sampling.slot_of(now)), json.dumps(sample)])


def _moment(value: datetime) -> Any:
    """As the database keeps it: SQLite has no type for it."""
    return connection.ops.adapt_datetimefield_value(value)
