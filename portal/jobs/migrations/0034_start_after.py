"""Adds the job after which another one starts. Jobs of earlier releases start after none."""

import importlib

import django.db.models.deletion
from django.db import migrations, models

guards = importlib.import_module("portal.jobs.migrations.0003_guards")


class Migration(migrations.Migration):
    dependencies = [("jobs", "0033_more_time_and_share_factor")]

    operations = [
        migrations.AddField(
            "job",
            "after",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.RESTRICT,
                related_name="dependents",
                to="jobs.job",
            ),
        ),
        migrations.AddField("job", "use_outputs", models.BooleanField(default=False)),
        migrations.AddField("job", "ready_at", models.DateTimeField(blank=True, null=True)),
        # SQLite may have rebuilt tables and lost their triggers.
        migrations.RunPython(guards.guard, guards.unguard),
    ]
