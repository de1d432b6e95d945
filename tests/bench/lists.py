"""The list of a lab with 100,000 jobs, on PostgreSQL and then on SQLite: the processor time of each order, filter and page.

python -m tests.bench.lists [--jobs 100000] [--requests 20] [--only sqlite]
"""

import argparse
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from tests.bench.targets import Target, verdict

MAX_MILLISECONDS = 150.0
PROJECTS, PEOPLE = 60, 40
WORDS = [
    "resnet",
    "vit",
    "bert",
    "lstm",
    "digits",
    "speech",
    "sweep",
    "baseline",
    "ablation",
    "augment",
    "warmup",
    "cosine",
    "adam",
    "sgd",
    "large",
    "small",
]


@contextmanager
def sqlite_here() -> Iterator[None]:
    """Set up Django on an empty, migrated SQLite in this process."""
    with tempfile.TemporaryDirectory("-bench", "sl-") as home:
        os.environ |= {
            "SECRET_KEY": "only-for-tests-and-longer-than-thirty-two-characters",
            "SCHEDULEARN_HOME": home,
            "DJANGO_SETTINGS_MODULE": "portal.settings",
            "LOG_LEVEL": "WARNING",
        }
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        yield


def fill(count: int) -> None:
    """Create a lab with so many jobs, nearly all of which have ended."""
    from django.utils import timezone

    from portal.accounts.models import User
    from portal.environments.models import Environment
    from portal.jobs.models import Job
    from portal.projects.models import CodeVersion, Membership, Project

    pick = random.Random(7)
    now = timezone.now()
    people = [
        User.objects.create(username=f"person{number}", password="!", is_staff=number == 0) for number in range(PEOPLE)
    ]
    environment = Environment.objects.order_by("pk").first() or Environment.objects.create(key="e", title="E")
    codes = []
    for number in range(PROJECTS):
        owner = people[number % PEOPLE]
        project = Project.objects.create(name=f"{pick.choice(WORDS)} {number}", created_by=owner)
        Membership.objects.create(project=project, user=owner, role="owner")
        if number % 10 == 0 and owner != people[1]:
            Membership.objects.create(project=project, user=people[1], role="member")
        codes.append(
            CodeVersion.objects.create(
                project=project, number=1, sha256=f"{number:064}", size=1, files=[], upload_name="x", created_by=owner
            )
        )
    rows = []
    for number in range(count):
        code = pick.choice(codes)
        submitted = now - timedelta(minutes=5 * (count - number))
        started, took = submitted + timedelta(minutes=pick.random() * 90), timedelta(minutes=pick.expovariate(1 / 60))
        state = pick.choice(("SUCCEEDED", "SUCCEEDED", "FAILED", "CANCELLED")) if number < count - 200 else "QUEUED"
        ended = state != "QUEUED"
        gpus = pick.choice((1, 1, 2, 4, 8))
        name = " ".join(pick.sample(WORDS, 3))
        rows.append(
            Job(
                project=code.project, code=code, environment=environment, submitted_by=pick.choice(people),
                submitted_at=submitted, name=name, launcher="command", time_limit_seconds=3600 * gpus, min_gpus=gpus,
                entry=f"python train.py --lr {pick.random():.5f} --seed {number} --{pick.choice(WORDS)}", max_gpus=gpus,
                description=" ".join(pick.choices(WORDS, k=12)), state=state, tags=f" {pick.choice(WORDS)} ",
                started_at=started if ended else None, finished_at=started + took if ended else None,
            )
        )  # fmt: skip
        if len(rows) == 2000:
            Job.objects.bulk_create(rows)
            rows = []
    Job.objects.bulk_create(rows)


def addresses(count: int) -> dict[str, str]:
    """Return what is measured by name."""
    from portal.jobs.job_list import JOBS

    last = count // 25
    found = {
        "newest first": "/jobs/",
        "page 40": "/jobs/?page=40",
        "last page": f"/jobs/?page={last}",
        "state": "/jobs/?state=failed",
        "states, days": "/jobs/?state=failed&state=cancelled&period=30d",
        "person": "/jobs/?person=person7",
        "project by time": "/jobs/?project=7&sort=-time",
        "tag": "/jobs/?tags=bert",
        "common word": "/jobs/?q=resnet",
        "rare word": "/jobs/?q=--seed+77123",
        "no hit": "/jobs/?q=nothing-has-this",
        "word by time": "/jobs/?q=warmup&sort=-time",
        "queue": "/jobs/queue",
    }
    found |= {f"sort {minus}{key}": f"/jobs/?sort={minus}{key}" for key in JOBS.sort_names for minus in ("", "-")}
    found |= {f"page 40 of {key}": f"/jobs/?sort={key}&page=40" for key in ("name", "-time", "project")}
    return found


def measure(count: int, requests: int, database: str) -> int:
    from django.db import connection
    from django.test import Client

    from portal.accounts.models import User

    fill(count)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        cursor.execute("SELECT pg_backend_pid()" if database == "PostgreSQL" else "SELECT 0")
        (backend,) = cursor.fetchone()

    def clock() -> float:
        """Return the processor seconds of this process and of its database: other programs of the machine do not count."""
        ticks = Path(f"/proc/{backend}/stat").read_text().rsplit(") ", 1)[1].split()[11:13] if backend else []
        return time.process_time() + sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    targets = []
    for who, name in (("admin", "person0"), ("member", "person1")):
        client = Client()
        client.force_login(User.objects.get(username=name))
        for what, address in addresses(count).items():
            times = []
            for _ in range(requests + 1):
                began = clock()
                response = client.get(address, HTTP_HOST="localhost")
                times.append((clock() - began) * 1000)
                assert response.status_code == 200, (address, response.status_code)
            # one that was measured: with few requests statistics.quantiles() extrapolates
            p95 = sorted(times[1:])[math.ceil(0.95 * requests) - 1]
            targets.append(Target(f"{database}, {who}, {what}", p95, MAX_MILLISECONDS, "ms"))
    return verdict(targets)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--only", choices=("postgresql", "sqlite"))
    asked = parser.parse_args()
    if asked.only is None:  # each database in a process, as Django is set up once
        own = [sys.executable, "-m", "tests.bench.lists", f"--jobs={asked.jobs}", f"--requests={asked.requests}"]
        ends = [subprocess.run([*own, f"--only={each}"], check=False) for each in ("postgresql", "sqlite")]
        return max(end.returncode for end in ends)
    if asked.only == "sqlite":
        with sqlite_here():
            return measure(asked.jobs, asked.requests, "SQLite")
    from tests.bench.portal import portal_here

    with portal_here():
        return measure(asked.jobs, asked.requests, "PostgreSQL")


if __name__ == "__main__":
    sys.exit(main())
