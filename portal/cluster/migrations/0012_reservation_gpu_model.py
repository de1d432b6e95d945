"""Adds the model of reserved GPUs. Reservations of earlier releases are of any."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("cluster", "0011_environments_app")]

    operations = [
        migrations.AddField("reservation", "gpu_model", models.CharField(blank=True, default="", max_length=80)),
    ]
