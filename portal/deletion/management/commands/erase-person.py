# ruff: noqa: N999  the name of a command
"""``manage.py erase-person NAME``: show what hinders it and what goes, and after ``--yes`` erase the person."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.accounts.models import User
from portal.accounts.people import find_person
from portal.deletion.people import erasing
from portal.refused import Refused


class Command(BaseCommand):
    help = "Erase a deactivated person. Without --yes it only shows what would happen."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="The user name or the e-mail address.")
        parser.add_argument("--yes", action="store_true", help="Erase the person; it cannot be undone.")
        parser.add_argument(
            "--delete-jobs", action="store_true", help="Erase their jobs too; otherwise these stay in their projects."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            person = find_person(options["name"], User.objects.all())
            erasing.require_may_erase(None, person)
            found = erasing.preview_of(person)
            jobs = "are erased" if options["delete_jobs"] else "stay in their projects, under the pseudonym"
            self.stdout.write(
                f"{person}: {found.jobs} jobs {jobs} ({found.kept_count} kept ones stay); {found.tokens} tokens, "
                f"{found.secrets} secrets, {found.schedules} schedules and {found.notices} notices are deleted."
            )
            for hindrance in found.hindrances:
                self.stdout.write(f"- {hindrance}")
            if not options["yes"] or found.hindrances:
                raise CommandError("Nothing is changed." + ("" if found.hindrances else " Add --yes to erase."))
            erasure = erasing.start(None, person, person.username, delete_jobs=options["delete_jobs"])
            erasing.finish(erasure)
        except Refused as refusal:
            raise CommandError(refusal.message) from refusal
        self.stdout.write(f"Erased. GPU-hours and the audit log show “{erasure.pseudonym}”.")
