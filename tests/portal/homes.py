"""Homes of the portal for programs that tests start."""

from pathlib import Path

from django.db import connection


def migrate(home: Path) -> None:
    """Put a copy of the tests' own migrated SQLite database into a home: to migrate another one takes ten seconds.

    The test must be marked ``django_db(transaction=True)``, because SQLite copies no database within a transaction.
    """
    assert connection.vendor == "sqlite"
    with connection.cursor() as cursor:
        cursor.execute("VACUUM INTO %s", [str(home / "db.sqlite3")])
