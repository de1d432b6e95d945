# ruff: noqa: N999  the name of a command
"""``manage.py export-person NAME FILE.zip``: write all that the portal stores about a person."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.accounts.models import User
from portal.accounts.people import find_person
from portal.deletion.people import exporting
from portal.refused import Refused


class Command(BaseCommand):
    help = "Write all that the portal stores about a person to a zip. Values of secrets, tokens and passwords are left out."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="The user name or the e-mail address.")
        parser.add_argument("file", type=Path, help="The zip to write. It must not exist.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            person = find_person(options["name"], User.objects.all())
            with options["file"].open("xb") as file:
                options["file"].chmod(0o600)
                exporting.write(person, file)
        except (Refused, OSError) as error:
            raise CommandError(str(getattr(error, "message", error))) from error
        self.stdout.write(f"{options['file']} has the data of {person}.")
