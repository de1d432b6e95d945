"""Upgrades of the database from the tables of an earlier release."""

from django.db import connection
from django.db.migrations.executor import MigrationExecutor


def upgrade_from(app: str, before: str) -> None:
    """Go back to the tables of that migration, then on to the latest of all apps. Needs a test with transactions."""
    MigrationExecutor(connection).migrate([(app, before)])
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())
