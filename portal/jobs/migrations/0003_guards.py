"""What no statement may do to these tables, whatever bug sits above: refused by the database itself.

SQLite rebuilds a table to alter it and loses its triggers: a later migration of one of these models must end with
``migrations.RunPython(guard, unguard)`` again. tests/laws/test_constraints.py tells when that was forgotten.
"""

from typing import NamedTuple

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps


class Guard(NamedTuple):
    name: str
    table: str
    event: str
    when: str
    message: str


def rank(row: str) -> str:
    states = ("ASSIGNED", "PREPARING", "RUNNING", "STOPPING", "EXITED")
    cases = " ".join(f"WHEN '{state}' THEN {number}" for number, state in enumerate(states))
    return f"(CASE {row}.state {cases} ELSE -1 END)"


GUARDS = (
    Guard(
        "container_moves_forward",
        "jobs_container",
        "UPDATE",
        f"NEW.state <> OLD.state AND {rank('NEW')} <= {rank('OLD')}",
        "A container moves forward only, and stays exited.",
    ),
    Guard(
        "container_exit_is_final",
        "jobs_container",
        "UPDATE",
        "OLD.state = 'EXITED' AND (NEW.exit_reason <> OLD.exit_reason OR NEW.exited_at <> OLD.exited_at)",
        "How a container exited does not change.",
    ),
    Guard(
        "container_keeps_its_place",
        "jobs_container",
        "UPDATE",
        "NEW.node_id <> OLD.node_id OR NEW.attempt_id <> OLD.attempt_id OR NEW.name <> OLD.name",
        "A container does not move to another node or attempt.",
    ),
    Guard(
        "job_finishes_once",
        "jobs_job",
        "UPDATE",
        "OLD.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')"
        " AND (NEW.state <> OLD.state OR NEW.finished_at IS NULL OR NEW.finished_at <> OLD.finished_at)",
        "A finished job never changes again.",
    ),
    Guard(
        "attempt_ends_once",
        "jobs_attempt",
        "UPDATE",
        "OLD.ended_at IS NOT NULL AND (NEW.ended_at IS NULL OR NEW.ended_at <> OLD.ended_at OR NEW.outcome <> OLD.outcome)",
        "An attempt that has ended never lives again.",
    ),
    Guard(
        "attempt_keeps_its_number",
        "jobs_attempt",
        "UPDATE",
        "NEW.job_id <> OLD.job_id OR NEW.number <> OLD.number",
        "An attempt keeps its job and its number.",
    ),
    Guard(
        "allocation_released_once",
        "jobs_allocation",
        "UPDATE",
        "OLD.released_at IS NOT NULL AND (NEW.released_at IS NULL OR NEW.released_at <> OLD.released_at)",
        "A released GPU is not taken back by its old allocation.",
    ),
    Guard(
        "allocation_keeps_its_gpu",
        "jobs_allocation",
        "UPDATE",
        "NEW.gpu_id <> OLD.gpu_id OR NEW.attempt_id <> OLD.attempt_id OR NEW.container_id <> OLD.container_id",
        "An allocation keeps its GPU and its holder.",
    ),
    Guard(
        "log_never_shrinks",
        "jobs_logstream",
        "UPDATE",
        "NEW.size < OLD.size OR NEW.marks < OLD.marks OR (OLD.cut AND NEW.size <> OLD.size)",
        "A log only grows, until it is cut.",
    ),
    Guard(  # its texts have a guard of their own, which knows when a person is erased: portal/deletion/migrations
        "job_event_is_not_changed",
        "jobs_jobevent",
        "UPDATE",
        "NEW.id <> OLD.id OR NEW.job_id <> OLD.job_id OR NEW.seq <> OLD.seq OR NEW.at <> OLD.at OR NEW.kind <> OLD.kind"
        " OR COALESCE(NEW.actor_id, 0) <> COALESCE(OLD.actor_id, 0)",
        "A job's history is append-only.",
    ),
    Guard("job_event_is_not_deleted", "jobs_jobevent", "DELETE", "1 = 1", "A job's history is append-only."),
)

REFUSE = """
CREATE OR REPLACE FUNCTION jobs_refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'integrity_constraint_violation'; END $$
"""


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def guard(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    """May be run again."""
    unguard(apps, editor)
    if editor.connection.vendor == "postgresql":
        editor.execute(REFUSE, params=None)  # its % is PL/pgSQL's
    for one in GUARDS:
        head = f"CREATE TRIGGER {one.name} BEFORE {one.event} ON {one.table} FOR EACH ROW"
        if editor.connection.vendor == "postgresql":
            editor.execute(f"{head} WHEN ({one.when}) EXECUTE FUNCTION jobs_refuse({quoted(one.message)})")
        else:
            editor.execute(f"{head} WHEN {one.when} BEGIN SELECT RAISE(ABORT, {quoted(one.message)}); END")


def unguard(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    on_table = editor.connection.vendor == "postgresql"
    for one in GUARDS:
        editor.execute(f"DROP TRIGGER IF EXISTS {one.name}" + (f" ON {one.table}" if on_table else ""))


class Migration(migrations.Migration):
    dependencies = [("jobs", "0002_hold_stuck_and_cut")]
    operations = [migrations.RunPython(guard, unguard)]
