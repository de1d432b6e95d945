"""Renames the field most_batch of the statistics of steps to max_batch. Its column stays as it is."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0018_overlay_network")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RenameField(model_name="stepstat", old_name="most_batch", new_name="max_batch"),
                migrations.AlterField(
                    model_name="stepstat",
                    name="max_batch",
                    field=models.PositiveBigIntegerField(db_column="most_batch", default=0),
                ),
            ],
        ),
    ]
