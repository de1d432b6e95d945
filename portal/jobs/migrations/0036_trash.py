"""Adds the trash. Nothing was deleted in earlier releases, and nothing is kept."""

import importlib

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

guards = importlib.import_module("portal.jobs.migrations.0003_guards")


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0035_secrets"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="deleted_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="deleted_by",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="erase_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="erased_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="kept",
            field=models.BooleanField(default=False),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("erase_at__isnull", False)), fields=["erase_at"], name="job_erased_later"
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("deleted_at__isnull", True),
                    models.Q(
                        ("erase_at__isnull", False),
                        ("kept", False),
                        ("state__in", ("SUCCEEDED", "FAILED", "CANCELLED")),
                    ),
                    _connector="OR",
                ),
                name="job_deleted_when_finished_and_not_kept",
            ),
        ),
        # SQLite may have rebuilt tables and lost their triggers.
        migrations.RunPython(guards.guard, guards.unguard),
    ]
