"""Renames the field ring of attempts to overlay_network. Its column and its constraint stay as they are."""

from django.db import migrations, models

CONSTRAINT = "one_live_attempt_per_ring"


class Migration(migrations.Migration):
    dependencies = [("jobs", "0017_tags")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveConstraint(model_name="attempt", name=CONSTRAINT),
                migrations.RenameField(model_name="attempt", old_name="ring", new_name="overlay_network"),
                migrations.AlterField(
                    model_name="attempt",
                    name="overlay_network",
                    field=models.PositiveIntegerField(blank=True, db_column="ring", null=True),
                ),
                migrations.AddConstraint(
                    model_name="attempt",
                    constraint=models.UniqueConstraint(
                        condition=models.Q(("ended_at__isnull", True)), fields=("overlay_network",), name=CONSTRAINT
                    ),
                ),
            ],
        ),
    ]
