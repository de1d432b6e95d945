"""Moves the model of rank groups here from the app gauges, where it was called Ring. Its table stays as it is."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0015_limits_of_progress"), ("gauges", "0003_ring_at")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name="RankGroup",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("number", models.PositiveIntegerField()),
                        ("at", models.DateTimeField()),
                        ("hosts", models.JSONField(default=list)),
                        ("cost_seconds", models.FloatField(null=True)),
                        (
                            "driver",
                            models.ForeignKey(
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="rank_groups",
                                to="jobs.container",
                            ),
                        ),
                    ],
                    options={
                        "db_table": "gauges_ring",
                        "ordering": ["driver", "number"],
                        "indexes": [models.Index(fields=["at"], name="ring_at")],
                        "constraints": [
                            models.UniqueConstraint(fields=("driver", "number"), name="ring_number_once_per_driver")
                        ],
                    },
                ),
            ],
        ),
    ]
