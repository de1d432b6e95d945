import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0005_ring"),
    ]

    operations = [
        migrations.CreateModel(
            name="CheckpointSet",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField(default=0)),
                ("files", models.JSONField(default=dict)),
                ("size", models.PositiveBigIntegerField(default=0)),
                ("taken_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("stored_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "attempt",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="jobs.attempt"),
                ),
                (
                    "job",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="checkpoint_set", to="jobs.job"
                    ),
                ),
            ],
        ),
    ]
