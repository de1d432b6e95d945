"""The keys of user and group names: those of names that were allowed to differ by case only do not collide."""

from typing import Any

import django.db.models.deletion
from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

import portal.accounts.models
from portal.names import name_key, spare_key

AT_ONCE = 1000


def keys_of(names: Any) -> dict[int, str]:
    """Return the key of each row. The first of several rows with the same has it; the others get spare ones."""
    keys: dict[int, str] = {}
    used: set[str] = set()
    for pk, name in names:
        key = name_key(name)
        keys[pk] = spare_key(key, pk) if key in used else key
        used.add(keys[pk])
    return keys


def fill(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    user, group = apps.get_model("accounts", "User"), apps.get_model("auth", "Group")
    group_name = apps.get_model("accounts", "GroupName")
    for pk, key in keys_of(user.objects.order_by("pk").values_list("pk", "username")).items():
        user.objects.filter(pk=pk).update(name_key=key)
    rows = keys_of(group.objects.order_by("pk").values_list("pk", "name"))
    group_name.objects.bulk_create((group_name(group_id=pk, name_key=key) for pk, key in rows.items()), AT_ONCE)


class Migration(migrations.Migration):
    dependencies = [("accounts", "0005_soft_limits")]

    operations = [
        migrations.AlterModelManagers("user", [("objects", portal.accounts.models.People())]),
        migrations.AddField(
            "user", "name_key", portal.accounts.models.NameKeyField(null=True, editable=False), preserve_default=False
        ),
        migrations.CreateModel(
            "GroupName",
            [
                (
                    "group",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="auth.group",
                    ),
                ),
                ("name_key", models.TextField(unique=True)),
            ],
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
