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

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:  # a setting that was refused: the sentence says what to do
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
