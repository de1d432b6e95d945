"""Rows of the audit log can be added and read, by no statement changed or deleted."""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

SQLITE = """
CREATE TRIGGER audit_no_{name} BEFORE {verb} ON accounts_auditentry
BEGIN SELECT RAISE(ABORT, 'The audit log is append-only.'); END
"""

POSTGRES = """
CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'The audit log is append-only.' USING ERRCODE = 'integrity_constraint_violation'; END $$;
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE ON accounts_auditentry
FOR EACH ROW EXECUTE FUNCTION audit_is_append_only();
"""


def guard(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    if editor.connection.vendor == "postgresql":
        editor.execute(POSTGRES)
    else:
        for verb in ("UPDATE", "DELETE"):
            editor.execute(SQLITE.format(name=verb.lower(), verb=verb))


def unguard(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    if editor.connection.vendor == "postgresql":
        editor.execute("DROP TRIGGER audit_is_append_only ON accounts_auditentry")
        editor.execute("DROP FUNCTION audit_is_append_only()")
    else:
        for verb in ("update", "delete"):
            editor.execute(f"DROP TRIGGER audit_no_{verb}")


class Migration(migrations.Migration):
    dependencies = [("accounts", "0002_session_salt_and_one_name")]
    operations = [migrations.RunPython(guard, unguard)]
