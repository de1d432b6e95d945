"""Adds what a job needs of processors, memory, /dev/shm and space for files. Jobs of earlier releases have the usual shares."""

import importlib

from django.db import migrations, models

guards = importlib.import_module("portal.jobs.migrations.0003_guards")


class Migration(migrations.Migration):
    dependencies = [("jobs", "0029_environments_app")]

    operations = [
        migrations.AddField("job", "cpus_per_gpu", models.PositiveSmallIntegerField(blank=True, null=True)),
        migrations.AddField("job", "memory_mib_per_gpu", models.PositiveIntegerField(blank=True, null=True)),
        migrations.AddField("job", "shm_mib", models.PositiveIntegerField(blank=True, null=True)),
        migrations.AddField("job", "scratch_mib", models.PositiveIntegerField(blank=True, null=True)),
        # SQLite may have rebuilt tables and lost their triggers.
        migrations.RunPython(guards.guard, guards.unguard),
    ]
