"""Lets the error of a cycle be a message as well as the sentence of an earlier release. The table has no triggers."""

from django.db import migrations

import portal.message_field


class Migration(migrations.Migration):
    dependencies = [("control", "0005_keep_the_chosen_policy")]

    operations = [migrations.AlterField("cycle", "error", portal.message_field.MessageField(blank=True))]
