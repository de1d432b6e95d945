"""``manage.py setup-link``: prints the one-time link with which the first admin comes in."""  # noqa: N999  # a name with a hyphen

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.accounts.services import setup_link

REFUSED = (
    "This lab has an admin already: ask one for an invitation. If no admin can sign in any more, setup-link --again prints "
    "a link for another admin; it is valid for one hour, and the audit log records it."
)


class Command(BaseCommand):
    help = "Print the one-time link with which the first admin comes in. Earlier links become invalid."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--again",
            action="store_true",
            help="Print a link even though there is an admin, for a lab whose admins can no longer sign in.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        link = setup_link(settings.SITE_URL, again=options["again"])
        if link is None:
            raise CommandError(REFUSED)
        self.stdout.write(link)
