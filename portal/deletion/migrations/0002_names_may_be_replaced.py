"""While a person is being erased, their name in the texts of the audit log and of the histories of jobs may be replaced. Nothing
else of these rows ever changes.
"""

import importlib

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

guards = importlib.import_module("portal.jobs.migrations.0003_guards")

ERASING = "EXISTS (SELECT 1 FROM deletion_erasure WHERE completed_at IS NULL)"
AUDIT = "The audit log is append-only."
HISTORY = "A job''s history is append-only."

SQLITE = (
    "DROP TRIGGER IF EXISTS audit_no_update",
    f"""CREATE TRIGGER audit_no_update BEFORE UPDATE ON accounts_auditentry
    WHEN NOT (
        NEW.id = OLD.id AND NEW.at IS OLD.at AND NEW.actor_id IS OLD.actor_id AND NEW.action IS OLD.action AND {ERASING}
    )
    BEGIN SELECT RAISE(ABORT, '{AUDIT}'); END""",
    "DROP TRIGGER IF EXISTS job_event_texts",
    f"""CREATE TRIGGER job_event_texts BEFORE UPDATE ON jobs_jobevent
    WHEN (NEW.text <> OLD.text OR NEW.data <> OLD.data) AND NOT {ERASING}
    BEGIN SELECT RAISE(ABORT, '{HISTORY}'); END""",
)
SQLITE_BEFORE = (
    "DROP TRIGGER IF EXISTS job_event_texts",
    f"""CREATE TRIGGER job_event_texts BEFORE UPDATE ON jobs_jobevent
    BEGIN SELECT RAISE(ABORT, '{HISTORY}'); END""",
    "DROP TRIGGER IF EXISTS audit_no_update",
    f"""CREATE TRIGGER audit_no_update BEFORE UPDATE ON accounts_auditentry
    BEGIN SELECT RAISE(ABORT, '{AUDIT}'); END""",
)
POSTGRES = (
    f"""CREATE OR REPLACE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN
        IF TG_OP = 'UPDATE' THEN
            IF NEW.id = OLD.id AND NEW.at = OLD.at AND NEW.actor_id IS NOT DISTINCT FROM OLD.actor_id
                AND NEW.action = OLD.action AND {ERASING}
            THEN RETURN NEW;
            END IF;
        END IF;
        RAISE EXCEPTION '{AUDIT}' USING ERRCODE = 'integrity_constraint_violation';
    END $$""",
    f"""CREATE OR REPLACE FUNCTION job_event_texts() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN
        IF (NEW.text <> OLD.text OR NEW.data <> OLD.data) AND NOT {ERASING} THEN
            RAISE EXCEPTION '{HISTORY}' USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        RETURN NEW;
    END $$""",
    "DROP TRIGGER IF EXISTS job_event_texts ON jobs_jobevent",
    """CREATE TRIGGER job_event_texts BEFORE UPDATE ON jobs_jobevent
    FOR EACH ROW EXECUTE FUNCTION job_event_texts()""",
)
POSTGRES_BEFORE = (
    f"""CREATE OR REPLACE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION '{AUDIT}' USING ERRCODE = 'integrity_constraint_violation'; END $$""",
    f"""CREATE OR REPLACE FUNCTION job_event_texts() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION '{HISTORY}' USING ERRCODE = 'integrity_constraint_violation'; END $$""",
)


def allow(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    guards.guard(apps, editor)
    for statement in POSTGRES if editor.connection.vendor == "postgresql" else SQLITE:
        editor.execute(statement, params=None)


def forbid(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    for statement in POSTGRES_BEFORE if editor.connection.vendor == "postgresql" else SQLITE_BEFORE:
        editor.execute(statement, params=None)


class Migration(migrations.Migration):
    dependencies = [
        ("deletion", "0001_initial"),
        ("accounts", "0003_audit_is_append_only"),
        ("jobs", "0037_retention"),
    ]
    operations = [migrations.RunPython(allow, forbid)]
