"""Lets columns have messages as well as the sentences of earlier releases; most of them had a maximum length."""

from django.db import migrations

import portal.message_field


class Migration(migrations.Migration):
    dependencies = [
        ("cluster", "0009_fix_of_problems"),
    ]

    operations = [
        # The tables have no triggers, which an AlterField would lose on SQLite.
        migrations.AlterField("gpu", "problem", portal.message_field.MessageField(blank=True)),
        migrations.AlterField("gpu", "quarantine_reason", portal.message_field.MessageField(blank=True)),
        migrations.AlterField("gpu", "fault", portal.message_field.MessageField(blank=True)),
        migrations.AlterField("gpu", "outside", portal.message_field.MessageField(blank=True)),
        migrations.AlterField("nodeenvironment", "detail", portal.message_field.MessageField(blank=True)),
    ]
