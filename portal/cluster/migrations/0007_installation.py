"""Gives the installation its id.

A database of an earlier release gets one that follows from its first account, so that each of its backups, restored and
migrated, gets the same.
"""

import uuid

from django.conf import settings
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

NAMESPACE = uuid.UUID("6f0a2c1e-93d4-4b57-8a36-d1f5e2b7c940")


def name_it(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    joined = apps.get_model(settings.AUTH_USER_MODEL).objects.order_by("date_joined", "pk").values_list("date_joined")
    first = joined.first()
    uid = uuid.uuid5(NAMESPACE, first[0].isoformat()) if first else uuid.uuid4()
    apps.get_model("cluster", "Installation").objects.get_or_create(pk=1, defaults={"uid": uid})


class Migration(migrations.Migration):
    dependencies = [
        ("cluster", "0006_environment_on_demand"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Installation",
            fields=[
                (
                    "id",
                    models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False),
                ),
                ("uid", models.UUIDField(default=uuid.uuid4, editable=False)),
            ],
            options={
                "constraints": [models.CheckConstraint(condition=models.Q(("id", 1)), name="one_installation")],
            },
        ),
        migrations.RunPython(name_it, migrations.RunPython.noop),
    ]
