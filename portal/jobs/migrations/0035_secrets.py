"""Adds the names of the secrets that a job gets. Jobs of earlier releases get none."""

import importlib

from django.db import migrations, models

guards = importlib.import_module("portal.jobs.migrations.0003_guards")


class Migration(migrations.Migration):
    dependencies = [("jobs", "0034_start_after")]

    operations = [
        migrations.AddField("job", "secrets", models.JSONField(default=list)),
        # SQLite may have rebuilt tables and lost their triggers.
        migrations.RunPython(guards.guard, guards.unguard),
    ]
