"""Adds which GPUs a job accepts, and the memory that attempts used. Jobs of earlier releases accept any GPU."""

import importlib

from django.db import migrations, models

guards = importlib.import_module("portal.jobs.migrations.0003_guards")


class Migration(migrations.Migration):
    dependencies = [("jobs", "0031_network")]

    operations = [
        migrations.AddField("job", "gpu_memory_mib", models.PositiveIntegerField(blank=True, null=True)),
        migrations.AddField("job", "gpu_models", models.JSONField(default=list)),
        migrations.AddField("job", "same_gpu_model", models.BooleanField(default=False)),
        migrations.AddField("attempt", "peak_gpu_memory_mib", models.PositiveIntegerField(blank=True, null=True)),
        # SQLite may have rebuilt tables and lost their triggers.
        migrations.RunPython(guards.guard, guards.unguard),
    ]
