"""The home page of a large lab: 50 nodes of 8 GPUs, 100,000 jobs, 300 of which wait.

``python -m tests.bench.home`` fills a database of SQLite and opens the page as a user with a twelfth of the jobs, and as an
admin. Times are processor times of this process, so that other load does not affect them.
"""

import os
import sys
import tempfile
import time
from statistics import median
from typing import TYPE_CHECKING

from tests.bench.targets import Target, verdict

if TYPE_CHECKING:
    from portal.accounts.models import User

NODES, GPUS, JOBS, WAITING = 50, 8, 100_000, 300
REPETITIONS = 15
LIMIT_MS = 150.0


def main() -> int:
    with tempfile.TemporaryDirectory("-bench", "sl-") as home:
        os.environ |= {"SCHEDULEARN_HOME": home, "DJANGO_SETTINGS_MODULE": "portal.settings", "LOG_LEVEL": "WARNING"}
        os.environ.pop("DATABASE_URL", None)
        import django

        django.setup()
        from django.core.management import call_command
        from django.db import transaction

        from tests.portal.home.large_lab import fill

        call_command("migrate", verbosity=0)
        with transaction.atomic():
            people = fill(NODES, GPUS, JOBS, WAITING)
        return verdict(
            [
                Target(f"the home page of {name}", milliseconds(people[name]), LIMIT_MS, "ms")
                for name in ("person0", "ada")
            ]
        )


def milliseconds(user: "User") -> float:
    """Return the processor time of the page, the median of some."""
    from django.test import Client

    client, taken = Client(SERVER_NAME="localhost"), []
    client.force_login(user)
    for _ in range(REPETITIONS):
        began = time.process_time()
        if client.get("/").status_code != 200:
            raise SystemExit("the page could not be shown")
        taken.append(1000 * (time.process_time() - began))
    return median(taken)


if __name__ == "__main__":
    sys.exit(main())
