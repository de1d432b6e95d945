#!/usr/bin/env python
"""Django's command line for the portal."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    if sys.argv[1:] in (["version"], ["--version"]):
        from runners import __version__

        sys.stdout.write(f"Schedulearn {__version__}\n")
        return
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from django.db import DatabaseError

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:  # a setting that was refused: the sentence says what to do
        raise SystemExit(str(error)) from error
    except DatabaseError as error:
        if not is_database_empty():
            raise
        raise SystemExit(
            f"{error}\nThe database has no tables. Run this command with the portal's settings (SCHEDULEARN_HOME, "
            "DATABASE_URL), or create the tables: manage.py migrate."
        ) from error


def is_database_empty() -> bool:
    """Return whether the database answers and has no tables."""
    from django.db import DatabaseError, connection

    connection.close()
    try:
        return not connection.introspection.table_names()
    except DatabaseError:
        return False


if __name__ == "__main__":
    main()
