"""Homes of the portal for programs that tests start."""

from pathlib import Path
from typing import Any

from django.db import connection


def migrate(home: Path, blocker: Any) -> None:
    """Put a copy of the tests' own migrated SQLite database into a home: to migrate another one takes ten seconds.

    The test takes the fixtures ``django_db_setup`` and ``django_db_blocker``. It must not be marked ``django_db``: SQLite
    copies no database within a transaction, and what only SQLite can do must not be chosen for PostgreSQL.
    """
    with blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("VACUUM INTO %s", [str(home / "db.sqlite3")])
