"""Leaves the models of environments to the app of this name; their tables stay."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("cluster", "0010_messages"),
        ("environments", "0001_initial"),
        ("jobs", "0029_environments_app"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.DeleteModel("NodeEnvironment"),
                migrations.DeleteModel("Environment"),
            ]
        ),
    ]
