"""Plain commands may have 4,000 characters: a line with a dozen options has more than 255."""

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

MAX_BEFORE, MAX_NOW = 255, 4000
"""Characters."""


def widen(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    _limit(editor, MAX_NOW)


def narrow(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    _limit(editor, MAX_BEFORE)


def _limit(editor: BaseDatabaseSchemaEditor, characters: int) -> None:
    """Change the column where its length counts. SQLite has no such limit, and an AlterField would cost its triggers."""
    if editor.connection.vendor == "postgresql":
        editor.execute(f"ALTER TABLE jobs_job ALTER COLUMN entry TYPE varchar({characters})")


class Migration(migrations.Migration):
    dependencies = [("jobs", "0022_shell_commands")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(widen, narrow)],
            state_operations=[
                migrations.AlterField("job", "entry", models.CharField(max_length=MAX_NOW)),
            ],
        ),
    ]
