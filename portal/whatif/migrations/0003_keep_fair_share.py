"""Keep what was simulated: ``fair_share`` saved no GPUs for large jobs and let jobs above their share run on until this release."""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

OFF = {"passed_over_hours": 0.0, "yields_after_minutes": 0.0}


def keep(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    for simulation in apps.get_model("whatif", "Simulation").objects.only("policies"):
        policies = [
            {**each, "params": {**OFF, **each["params"]}} if each["policy"] == "fair_share" else each
            for each in simulation.policies
        ]
        if policies != simulation.policies:
            simulation.policies = policies
            simulation.save(update_fields=["policies"])


class Migration(migrations.Migration):

    dependencies = [
        ("whatif", "0002_parts"),
    ]

    operations = [migrations.RunPython(keep, migrations.RunPython.noop)]
