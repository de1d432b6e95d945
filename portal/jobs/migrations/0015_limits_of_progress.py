"""Adds limits on restarts and silence to jobs, and the time of the latest output to logs.

When earlier releases stored the latest bytes is not known: the silence of jobs that run now is counted from here on.
"""

import importlib

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps
from django.utils import timezone

guards = importlib.import_module("portal.jobs.migrations.0003_guards")


def begin(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    streams = apps.get_model("jobs", "LogStream").objects
    streams.filter(container__attempt__ended_at=None).update(last_at=timezone.now())


class Migration(migrations.Migration):
    dependencies = [("jobs", "0014_job_uid_required")]

    operations = [
        migrations.AddField(
            "job", "restarts_without_progress", models.PositiveSmallIntegerField(blank=True, null=True)
        ),
        migrations.AddField("job", "silent_rank_minutes", models.PositiveSmallIntegerField(blank=True, null=True)),
        migrations.AddField("logstream", "last_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("logstream", "longest_gap_seconds", models.FloatField(null=True)),
        migrations.RunPython(begin, migrations.RunPython.noop),
        # SQLite may have rebuilt tables and lost their triggers.
        migrations.RunPython(guards.guard, guards.unguard),
    ]
