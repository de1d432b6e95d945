"""Takes over the models of environments from the app ``cluster``; their tables keep their names and rows."""

import django.db.models.deletion
from django.db import migrations, models

import portal.message_field


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("cluster", "0010_messages"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name="Environment",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("key", models.SlugField(unique=True)),
                        ("title", models.CharField(max_length=120)),
                        ("description", models.TextField(blank=True)),
                        ("packages", models.JSONField(default=list)),
                        ("on_demand", models.BooleanField(default=False)),
                        ("position", models.PositiveSmallIntegerField(default=0)),
                        ("retired", models.BooleanField(default=False)),
                    ],
                    options={"db_table": "cluster_environment", "ordering": ["position", "key"]},
                ),
                migrations.CreateModel(
                    name="NodeEnvironment",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        (
                            "state",
                            models.CharField(
                                choices=[
                                    ("waiting", "waiting"),
                                    ("preparing", "preparing"),
                                    ("ready", "ready"),
                                    ("failed", "failed"),
                                ],
                                default="waiting",
                                max_length=10,
                            ),
                        ),
                        ("progress_percent", models.PositiveSmallIntegerField(default=0)),
                        ("detail", portal.message_field.MessageField(blank=True)),
                        ("digest", models.CharField(blank=True, max_length=80)),
                        ("updated_at", models.DateTimeField(auto_now=True)),
                        (
                            "environment",
                            models.ForeignKey(
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="on_nodes",
                                to="environments.environment",
                            ),
                        ),
                        (
                            "node",
                            models.ForeignKey(
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="environments",
                                to="cluster.node",
                            ),
                        ),
                    ],
                    options={
                        "db_table": "cluster_nodeenvironment",
                        "constraints": [
                            models.UniqueConstraint(
                                fields=("node", "environment"), name="environment_once_per_node"
                            )
                        ],
                    },
                ),
            ]
        ),
    ]
