"""Keep the policy of labs that exist already: the default of new labs has changed.

Until this release the default was ``elastic_fifo``, and ``fair_share`` saved no GPUs for large jobs and let jobs above
their share run on. A lab that has people but no stored configuration gets the old default as a row, and each stored
``fair_share`` gets the new parameters switched off, so that what decides there, what an undo returns to and what a replay
repeats is what it was.
"""

from django.conf import settings
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

FORMER_DEFAULT = "elastic_fifo"
FORMER_PARAMS = {"strict": False, "up_to": "asked", "grow_after_seconds": 10, "least_gain": 0.05}
OFF = {"passed_over_hours": 0.0, "yields_after_minutes": 0.0}


def keep(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    configs = apps.get_model("control", "SchedulerConfig").objects
    people = apps.get_model(*settings.AUTH_USER_MODEL.split(".")).objects
    if not configs.exists() and people.exists():
        configs.create(policy=FORMER_DEFAULT, params=FORMER_PARAMS)
    for config in configs.filter(policy="fair_share"):
        if not OFF.keys() <= config.params.keys():
            config.params = {**OFF, **config.params}
            config.save(update_fields=["params"])


class Migration(migrations.Migration):

    dependencies = [
        ("control", "0004_chosen_batch"),
        ("accounts", "0005_soft_limits"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [migrations.RunPython(keep, migrations.RunPython.noop)]
