"""Apart from the data: PostgreSQL does not change a table with pending rows."""

from django.db import migrations

import portal.accounts.models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0006_name_key")]

    operations = [
        migrations.AlterField(
            "user", "name_key", portal.accounts.models.NameKeyField(unique=True, editable=False)
        ),
    ]
