"""The few statements that nearly every report of an agent comes to, in plain SQL for PostgreSQL and SQLite.

Hundreds of nodes report every few seconds. Django takes five times as long to build such a statement as the database takes
to execute it, and each round trip costs a thread as much again: so PostgreSQL is sent several statements at once. Rarer
changes go through the models.
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
from portal.message_field import stored_message
from portal.monitoring import sampling

Readings = tuple[int | None, int | None, int | None]
"""Of a GPU, in the order of ``protocol.READINGS``."""
Statement = tuple[str, Sequence[Any]]

TABLES = (
    "cluster_gpu",
    "cluster_node",
    "control_chosenbatch",
    "gauges_sample",
    "jobs_attempt",
    "jobs_container",
    "jobs_job",
)
"""All that the statements below use; a test compares them with the models."""
COLLECT_DAYS = 7
"""A node that has not sent the rest of a container's log in this time no longer has it."""
MAX_CACHED_SPECS = 4096
"""Container specifications, which are the same in each answer."""


@dataclass(frozen=True, slots=True)
class ReportingNode:
    """The node that reports: what its answer depends on."""

    pk: int
    approved: bool
    rotate: bool
    known: bool
    """Its report is the same as the last one that was stored (``Node.report_digest``), and it has not been away meanwhile."""
    sample_due: bool
    """There is no sample of the present slot yet."""


@dataclass(frozen=True, slots=True)
class ListedContainer:
    """A container in the answer to its node."""

    name: str
    attempt: int
    epoch: int
    role: str
    state: str
    detail: Any
    """As ``Container.detail`` has it."""
    wanted: str
    stop_reason: str
    given_up: bool
    """It was asked to stop and has not stopped in time."""
    batch: int
    job_uid: str
    """32 hexadecimal digits."""
    spec: Mapping[str, Any]


NODE_COLUMNS = {
    "pk": "node.id",
    "approved": "node.approved_at IS NOT NULL",
    "rotate": "node.rotation_asked_at IS NOT NULL",
    "known": "node.last_seen_at = %s AND node.said = %s",
    "sample_due": "NOT EXISTS (SELECT 1 FROM gauges_sample AS sample WHERE sample.node_id = node.id AND sample.at = %s)",
}
CONTAINER_COLUMNS = {
    "name": "container.name",
    "attempt": "container.attempt_id",
    "epoch": "attempt.number",
    "role": "container.role",
    "state": "container.state",
    "detail": "container.detail",
    "wanted": "container.wanted",
    "stop_reason": "container.stop_reason",
    "given_up": "COALESCE(container.stop_requested_at <= %s, FALSE)",
    "batch": "COALESCE(chosen.batch, 0)",
    "job_uid": "job.uid",
    "spec": "container.spec",
}
"""By field of ``ListedContainer``; all null for a node without containers."""

MARK_SEEN = """
UPDATE cluster_node SET last_seen_at = %s
WHERE token_digest = %s AND removed_at IS NULL AND said = %s AND last_seen_at >= %s
"""
SELECT_NODE = f"""
SELECT {", ".join((*NODE_COLUMNS.values(), *CONTAINER_COLUMNS.values()))}
FROM cluster_node AS node
LEFT JOIN jobs_container AS container ON container.node_id = node.id AND node.approved_at IS NOT NULL AND (
    container.state <> 'EXITED' OR (container.collected_at IS NULL AND container.exited_at > %s)
)
LEFT JOIN jobs_attempt AS attempt ON attempt.id = container.attempt_id
LEFT JOIN jobs_job AS job ON job.id = attempt.job_id
LEFT JOIN control_chosenbatch AS chosen ON chosen.attempt_id = container.attempt_id
WHERE node.token_digest = %s AND node.removed_at IS NULL
ORDER BY container.id
"""  # noqa: S608
SELECT_GPUS = "SELECT id FROM cluster_gpu WHERE node_id = %s ORDER BY id"
FOR_UPDATE = " FOR NO KEY UPDATE"
UPDATE_READINGS = """
UPDATE cluster_gpu SET
    utilisation_percent = CAST(reported.column2 AS smallint),
    memory_used_mib = CAST(reported.column3 AS integer),
    temperature_celsius = CAST(reported.column4 AS smallint)
FROM (VALUES {}) AS reported WHERE cluster_gpu.node_id = %s AND cluster_gpu.uuid = reported.column1
"""
INSERT_SAMPLE = """
INSERT INTO gauges_sample (node_id, at, readings)
SELECT %s, %s, {}(id, utilisation_percent, memory_used_mib, temperature_celsius)) FROM (
    SELECT * FROM cluster_gpu WHERE node_id = %s AND uuid IN ({})
        AND COALESCE(utilisation_percent, memory_used_mib, temperature_celsius) IS NOT NULL
    ORDER BY id
) AS gpu
HAVING COUNT(*) > 0
ON CONFLICT DO NOTHING
"""
JSON_LISTS = {"postgresql": "jsonb_agg(jsonb_build_array", "sqlite": "json_group_array(json_array"}
"""By database vendor."""


def mark_seen(
    token_digest: str, report_digest: str, now: datetime
) -> tuple[ReportingNode | None, list[ListedContainer]]:
    """Record that a node was seen, if its report is known and it has not been away meanwhile.

    The result is that of ``node_with_containers``.
    """
    with connection.cursor() as cursor:
        # The second statement reads after the first has locked the node's row: a container that was declared lost
        # before that is no longer in the answer.
        _execute_together(cursor, *_node_statements(token_digest, report_digest, now))
        return _parse_node_rows(cursor.fetchall())


def node_with_containers(token_digest: str, now: datetime) -> tuple[ReportingNode | None, list[ListedContainer]]:
    """Return the node with this token and the containers that its answer lists; none before it is approved.

    These are the live ones, and those that ended within ``COLLECT_DAYS`` and are not collected.
    """
    _, select = _node_statements(token_digest, "", now)
    with connection.cursor() as cursor:
        cursor.execute(*select)
        return _parse_node_rows(cursor.fetchall())


def _node_statements(token_digest: str, report_digest: str, now: datetime) -> tuple[Statement, Statement]:
    heard_since = now - timedelta(seconds=settings.NODE_LOST_AFTER_SECONDS)
    stoppable_since, collectable_since = now - timedelta(seconds=STOP_SECONDS), now - timedelta(days=COLLECT_DAYS)
    at, heard, *listed = _stored_times(now, heard_since, sampling.slot_of(now), stoppable_since, collectable_since)
    return (MARK_SEEN, [at, token_digest, report_digest, heard]), (
        SELECT_NODE,
        [at, report_digest, *listed, token_digest],
    )


def _parse_node_rows(rows: Sequence[Sequence[Any]]) -> tuple[ReportingNode | None, list[ListedContainer]]:
    if not rows:
        return None, []
    named = [dict(zip((*NODE_COLUMNS, *CONTAINER_COLUMNS), row, strict=True)) for row in rows]
    first = {name: named[0][name] for name in NODE_COLUMNS}
    node = ReportingNode(first.pop("pk"), **{name: bool(value) for name, value in first.items()})
    containers = [{name: row[name] for name in CONTAINER_COLUMNS} for row in named if row["name"] is not None]
    for row in containers:
        row["detail"] = stored_message(row["detail"])
        row |= {"job_uid": str(row["job_uid"]).replace("-", ""), "spec": _spec(row["spec"])}
    return node, [ListedContainer(**row) for row in containers]


@lru_cache(MAX_CACHED_SPECS)
def _spec(text: str) -> Mapping[str, Any]:
    """Return the specification, which all share and none may change."""
    spec: Mapping[str, Any] = json.loads(text)
    return spec


def write_readings(node_id: int, readings: Mapping[str, Readings], now: datetime) -> None:
    """Store the readings of a node's GPUs, by UUID, and the sample of this slot; nothing when all of them are None."""
    if all(value is None for values in readings.values() for value in values):
        return
    vendor, slot = connection.vendor, _stored_times(sampling.slot_of(now))
    values, marks = ", ".join(["(%s, %s, %s, %s)"] * len(readings)), ", ".join(["%s"] * len(readings))
    with connection.cursor() as cursor:
        _execute_together(
            cursor,
            # Their rows are locked in the order of their ids, as the scheduler does. SQLite has one writer and no such lock.
            (SELECT_GPUS + FOR_UPDATE * (vendor == "postgresql"), [node_id]),
            (
                UPDATE_READINGS.format(values),
                [*(value for uuid, each in readings.items() for value in (uuid, *each)), node_id],
            ),
            (INSERT_SAMPLE.format(JSON_LISTS[vendor], marks), [node_id, *slot, node_id, *readings]),
        )


def _execute_together(cursor: CursorWrapper, *statements: Statement) -> None:
    """Execute the statements in one transaction, on PostgreSQL in one round trip. The rows of the last can be fetched."""
    if connection.vendor == "postgresql":
        cursor.execute(";".join(sql for sql, _ in statements), [value for _, values in statements for value in values])
        return
    with transaction.atomic():
        for sql, values in statements:
            cursor.execute(sql, values)


def _stored_times(*values: datetime) -> list[Any]:
    """Return the values as the database stores them: SQLite has no type for them."""
    adapt = connection.ops.adapt_datetimefield_value
    return [adapt(value) for value in values]
