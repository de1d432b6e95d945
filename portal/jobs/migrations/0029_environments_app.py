"""Lets jobs refer to environments in their own app; the column and its constraint stay as they are."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("environments", "0001_initial"),
        ("jobs", "0028_order_of_metric_points"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    "job",
                    "environment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="jobs",
                        to="environments.environment",
                    ),
                ),
            ]
        ),
    ]
