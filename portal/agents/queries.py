"""The few statements that nearly every report of an agent comes to, in plain SQL for PostgreSQL and SQLite.

Hundreds of nodes report every few seconds. Django needs five times as long to put such a statement together as the
database to carry it out, and each time a thread waits for the database costs as much again: so PostgreSQL is sent several
at once. What happens more seldom goes by the models, as everywhere else.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper

from portal.jobs.rules import STOP_SECONDS
from portal.monitoring import sampling

Readings = tuple[int | None, int | None, int | None]
"""Of a GPU, in the order of ``agent_reports.READINGS``."""
Statement = tuple[str, Sequence[Any]]


COLLECT_DAYS = 7
"""A node that could not hand over a container's log in this time no longer has it."""
SPECS_REMEMBERED = 4096
"""Of the containers that nodes are told of, the same in each answer."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The node that asks, as much of it as its answer depends on."""

    pk: int
    approved: bool
    rotate: bool
    known: bool
    """It was seen, for its report says what the last one said that was written (``Node.said``)."""
    sample_due: bool
    """None was kept yet of this slot."""


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
    given_up: bool
    """It was told to stop, and does not."""
    batch: int
    job_uid: str
    """32 hexadecimal digits."""
    spec: Mapping[str, Any]


SEE = """
UPDATE cluster_node SET last_seen_at = %s
WHERE token_digest = %s AND removed_at IS NULL AND said = %s AND last_seen_at >= %s
"""
LOOK = """
SELECT node.id, node.approved_at IS NOT NULL, node.rotation_asked_at IS NOT NULL,
       node.last_seen_at = %s AND node.said = %s,
       NOT EXISTS (SELECT 1 FROM gauges_sample AS sample WHERE sample.node_id = node.id AND sample.at = %s),
       part.name, part.attempt_id, attempt.number, part.role, part.state, part.detail, part.wanted, part.stop_reason,
       COALESCE(part.stop_requested_at <= %s, FALSE), COALESCE(chosen.batch, 0), job.uid,
       part.spec
FROM cluster_node AS node
LEFT JOIN jobs_container AS part ON part.node_id = node.id AND node.approved_at IS NOT NULL AND (
    part.state <> 'EXITED' OR (part.collected_at IS NULL AND part.exited_at > %s)
)
LEFT JOIN jobs_attempt AS attempt ON attempt.id = part.attempt_id
LEFT JOIN jobs_job AS job ON job.id = attempt.job_id
LEFT JOIN control_chosenbatch AS chosen ON chosen.attempt_id = part.attempt_id
WHERE node.token_digest = %s AND node.removed_at IS NULL
ORDER BY part.id
"""
OF_NODE = 5
"""Columns of the node in each row; the rest are a container's, or null."""
GPUS = "SELECT id FROM cluster_gpu WHERE node_id = %s ORDER BY id"
LOCKED = " FOR NO KEY UPDATE"
READ = """
UPDATE cluster_gpu SET
    utilisation_percent = CAST(said.column2 AS smallint),
    memory_used_mib = CAST(said.column3 AS integer),
    temperature_celsius = CAST(said.column4 AS smallint)
FROM (VALUES {}) AS said WHERE cluster_gpu.node_id = %s AND cluster_gpu.uuid = said.column1
"""
SAMPLE = """
INSERT INTO gauges_sample (node_id, at, readings)
SELECT %s, %s, {}(id, utilisation_percent, memory_used_mib, temperature_celsius)) FROM (
    SELECT * FROM cluster_gpu WHERE node_id = %s AND uuid IN ({})
        AND COALESCE(utilisation_percent, memory_used_mib, temperature_celsius) IS NOT NULL
    ORDER BY id
) AS gpu
HAVING COUNT(*) > 0
ON CONFLICT DO NOTHING
"""
AS_LISTS = {"postgresql": "jsonb_agg(jsonb_build_array", "sqlite": "json_group_array(json_array"}
"""By the database's kind."""


def see(held: str, said: str, now: datetime) -> tuple[Caller | None, list[Part]]:
    """As ``look``, after the node was seen, if what it said is known and it has not been away meanwhile."""
    with connection.cursor() as cursor:
        # The second statement looks after the first one has the node's row: a container that was declared lost
        # before that is not told of any more.
        _together(cursor, *_seeing_and_looking(held, said, now))
        return _found(cursor.fetchall())


def look(held: str, now: datetime) -> tuple[Caller | None, list[Part]]:
    """Who holds the token with this digest, and the containers it is told of: none before it is approved.

    Those that live, and those that ended lately and are not collected.
    """
    _, looking = _seeing_and_looking(held, "", now)
    with connection.cursor() as cursor:
        cursor.execute(*looking)
        return _found(cursor.fetchall())


def _seeing_and_looking(held: str, said: str, now: datetime) -> tuple[Statement, Statement]:
    heard_since = now - timedelta(seconds=settings.NODE_LOST_AFTER_SECONDS)
    stoppable_since, collectable_since = now - timedelta(seconds=STOP_SECONDS), now - timedelta(days=COLLECT_DAYS)
    at, heard, *listed = _moments(now, heard_since, sampling.slot_of(now), stoppable_since, collectable_since)
    return (SEE, [at, held, said, heard]), (LOOK, [at, said, *listed, held])


def _found(rows: Sequence[Sequence[Any]]) -> tuple[Caller | None, list[Part]]:
    if not rows:
        return None, []
    pk, *facts = rows[0][:OF_NODE]
    parts = [
        Part(*(*row[OF_NODE:-2], str(row[-2]).replace("-", ""), _spec(row[-1])))
        for row in rows
        if row[OF_NODE] is not None
    ]
    return Caller(pk, *map(bool, facts)), parts


@lru_cache(SPECS_REMEMBERED)
def _spec(text: str) -> Mapping[str, Any]:
    """Read by all, changed by nobody."""
    spec: Mapping[str, Any] = json.loads(text)
    return spec


def write_readings(node_id: int, said: Mapping[str, Readings], now: datetime) -> None:
    """What GPUs read now, by UUID: onto their rows, and as the sample of this slot. Nothing when they say nothing."""
    if all(value is None for values in said.values() for value in values):
        return
    vendor, slot = connection.vendor, _moments(sampling.slot_of(now))
    values, marks = ", ".join(["(%s, %s, %s, %s)"] * len(said)), ", ".join(["%s"] * len(said))
    with connection.cursor() as cursor:
        _together(
            cursor,
            # Their rows are locked in the order of their ids, as the scheduler does. SQLite has one writer and no such lock.
            (GPUS + LOCKED * (vendor == "postgresql"), [node_id]),
            (READ.format(values), [*(value for uuid, each in said.items() for value in (uuid, *each)), node_id]),
            (SAMPLE.format(AS_LISTS[vendor], marks), [node_id, *slot, node_id, *said]),
        )


def _together(cursor: CursorWrapper, *statements: Statement) -> None:
    """In one transaction; PostgreSQL is asked once. The last one's rows can be fetched."""
    if connection.vendor == "postgresql":
        cursor.execute(";".join(sql for sql, _ in statements), [value for _, values in statements for value in values])
        return
    with transaction.atomic():
        for sql, values in statements:
            cursor.execute(sql, values)


def _moments(*values: datetime) -> list[Any]:
    """As the database keeps them: SQLite has no type for them."""
    adapt = connection.ops.adapt_datetimefield_value
    return [adapt(value) for value in values]
