"""Lets the note of a forecast be a message as well as the sentence of an earlier release. The table has no triggers."""

from django.db import migrations

import portal.message_field


class Migration(migrations.Migration):
    dependencies = [("forecast", "0001_initial")]

    operations = [migrations.AlterField("forecast", "note", portal.message_field.MessageField(blank=True))]
