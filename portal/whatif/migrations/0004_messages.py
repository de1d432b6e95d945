"""Lets the error of a simulation be a message as well as the sentence of an earlier release. The table has no triggers."""

from django.db import migrations

import portal.message_field


class Migration(migrations.Migration):
    dependencies = [("whatif", "0003_keep_fair_share")]

    operations = [migrations.AlterField("simulation", "error", portal.message_field.MessageField(blank=True))]
