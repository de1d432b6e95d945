import importlib
import uuid

from django.db import migrations, models

guards = importlib.import_module("portal.jobs.migrations.0003_guards")


class Migration(migrations.Migration):
    dependencies = [("jobs", "0013_job_uid")]

    operations = [
        migrations.AlterField("job", "uid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
        migrations.AlterField("job", "numbered_folder", models.BooleanField(default=False, editable=False)),
        migrations.AlterField("attempt", "uid", models.UUIDField(default=uuid.uuid4, editable=False, null=True)),
        # SQLite has rebuilt tables and lost their triggers.
        migrations.RunPython(guards.guard, guards.unguard),
    ]
