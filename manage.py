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
        from django.db import connection

        connection.close()
        if connection.introspection.table_names():
            raise
        raise SystemExit(
            f"{error}\nThe database {connection.settings_dict['NAME']} has no tables. Run this command with the portal's settings "
            "(SCHEDULEARN_HOME, DATABASE_URL), or create the tables: manage.py migrate."
        ) from error


if __name__ == "__main__":
    main()
