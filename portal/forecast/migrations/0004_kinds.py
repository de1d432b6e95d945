"""Adds the models of GPUs on which jobs are expected to start."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("forecast", "0003_lengths_known")]

    operations = [migrations.AddField("forecast", "kinds", models.JSONField(default=list))]
