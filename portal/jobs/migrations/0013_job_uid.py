"""Gives each job a uid, which no restored backup gives to another job.

Jobs of earlier releases get one that follows from their number and the microsecond of their submission: a backup of that
release, restored and migrated once more, gives a job the same uid again, and another job of the same number another one.
"""

import importlib
import uuid
from datetime import datetime

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

NAMESPACE = uuid.UUID("b8e4f1d0-5c27-4f6e-9d1b-3a70c8e2f615")
AT_ONCE = 2_000

guards = importlib.import_module("portal.jobs.migrations.0003_guards")


def uid_of(number: int, submitted_at: datetime) -> uuid.UUID:
    return uuid.uuid5(NAMESPACE, f"{number} {submitted_at.isoformat()}")


def give(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    model, last = apps.get_model("jobs", "Job"), 0
    column, connection = model._meta.get_field("uid"), editor.connection
    while rows := list(model.objects.filter(pk__gt=last).order_by("pk").values_list("pk", "submitted_at")[:AT_ONCE]):
        with connection.cursor() as cursor:
            cursor.executemany(
                "UPDATE jobs_job SET uid = %s WHERE id = %s",
                [(column.get_db_prep_value(uid_of(number, at), connection), number) for number, at in rows],
            )
        last = rows[-1][0]


class Migration(migrations.Migration):
    dependencies = [("jobs", "0012_total_samples")]

    operations = [
        migrations.AddField("job", "uid", models.UUIDField(editable=False, null=True)),
        # True for the jobs that exist; the next migration makes it False for those that come.
        migrations.AddField("job", "numbered_folder", models.BooleanField(default=True, editable=False)),
        migrations.AddField("attempt", "uid", models.UUIDField(editable=False, null=True)),
        migrations.AddField("logstream", "folder", models.CharField(blank=True, default="", max_length=80)),
        migrations.RunPython(give, migrations.RunPython.noop),
        # SQLite has rebuilt tables and lost their triggers.
        migrations.RunPython(guards.guard, guards.unguard),
    ]
