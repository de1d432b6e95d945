"""``manage.py rotate-keys``: replaces the keys that encrypt secrets, tokens and channels in the database."""  # noqa: N999  # a name with a hyphen

import time
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.ops.key_rotation import PAUSE_SECONDS, Rotation, RotationError, rotate_all
from portal.ui import counted

MAX_LISTED = 20


class Command(BaseCommand):
    help = (
        "Replace the keys that encrypt secrets, tokens of registries and Git hosts, and channels in the database. The portal "
        "may run meanwhile. If it is interrupted, run it again. Make a backup afterwards."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--pause",
            type=float,
            default=PAUSE_SECONDS,
            help="Seconds to wait for requests that still use the old keys, before these are dropped (default: %(default)s).",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            rotations = rotate_all(partial(time.sleep, max(options["pause"], 0)))
        except RotationError as error:
            raise CommandError(str(error)) from None
        for rotation in rotations:
            self._report(rotation)

    def _report(self, rotation: Rotation) -> None:
        lost = rotation.unreadable
        if rotation.is_missing and not lost:
            self.stdout.write(f"{rotation.key_file}: there is none yet")
            return
        done = (
            f"{counted(rotation.resealed, 'value')} encrypted with the new key"
            if not rotation.is_missing
            else "missing"
        )
        how = ", which finished an interrupted rotation" if rotation.was_continued else ""
        self.stdout.write(f"{rotation.key_file}: {done}{how}")
        if lost:
            self.stdout.write(f"  {counted(len(lost), 'value')} unreadable, because the key is lost. Enter them again:")
            for name in lost[:MAX_LISTED]:
                self.stdout.write(f"    {name}")
            if len(lost) > MAX_LISTED:
                self.stdout.write(f"    and {len(lost) - MAX_LISTED} more")
