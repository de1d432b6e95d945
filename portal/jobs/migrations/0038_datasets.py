"""Adds the datasets that jobs read. Jobs of earlier releases read none."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0037_retention"),
        ("storage", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="JobDataset",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=63)),
                ("path", models.CharField(blank=True, max_length=255)),
                ("writable", models.BooleanField(default=False)),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="datasets", to="jobs.job"
                    ),
                ),
                (
                    "version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="uses", to="storage.datasetversion"
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
                "constraints": [models.UniqueConstraint(fields=("job", "name"), name="job_dataset_name_once")],
            },
        ),
    ]
