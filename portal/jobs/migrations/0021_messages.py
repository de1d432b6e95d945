"""Lets two columns have messages as well as the sentences of earlier releases. Their type stays text."""

from django.db import migrations

import portal.message_field


class Migration(migrations.Migration):
    dependencies = [("jobs", "0020_event_messages")]

    operations = [
        # Only the state: an AlterField rewrites the table on SQLite, without its triggers.
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="container",
                    name="detail",
                    field=portal.message_field.MessageField(blank=True),
                ),
                migrations.AlterField(
                    model_name="job",
                    name="waiting_reason",
                    field=portal.message_field.MessageField(blank=True),
                ),
            ]
        ),
    ]
