"""``python manage.py rollup [--rebuild]``: updates the daily sums of usage and ledger now instead of within the hour."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from portal.usage import capacity, rollups


class Command(BaseCommand):
    help = "Bring the daily sums of usage and ledger up to yesterday."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--rebuild", action="store_true", help="compute all days again from the recorded facts")

    def handle(self, *args: Any, **options: Any) -> None:
        capacity.record()
        capacity.record_weights()
        days = rollups.roll_up(rebuild=options["rebuild"])
        self.stdout.write(f"{days} {'day' if days == 1 else 'days'} summed up.")
