"""SQLite with several writers of which one is killed again and again: nothing that was acknowledged is lost, nothing is
half there, and nobody is told that the database is locked."""

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.examples import examples

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = examples(6, 2)
SETUP = """
import django; django.setup()
from tests.portal.jobs_world import make_code, make_node, make_project, make_user
make_code(make_project(make_user("alice")))
make_node("one", gpus=2)
"""
WRITER = """
import sys
import django; django.setup()
from django.db import transaction
from portal.cluster.models import Gpu
from portal.jobs.models import Allocation, Job
from portal.projects.models import Project
from portal.jobs import lifecycle
from tests.portal.jobs_world import exit, make_job, place, run
gpu = Gpu.objects.get(index=int(sys.argv[1]))
for held in Allocation.objects.filter(gpu=gpu, released_at=None):  # of one that was killed here
    exit(held.container, None, "lost")
for job in Job.objects.filter(state="QUEUED", name=f"of {gpu.index}"):
    lifecycle.settle(job)
while True:
    with transaction.atomic():
        job = make_job(Project.objects.get(), launcher="command", name=f"of {gpu.index}")
    print("accepted", job.pk, flush=True)
    with transaction.atomic():
        attempt = place(job, [gpu])
    part = attempt.containers.get()
    run(part)
    exit(part, 0)
    print("ended", job.pk, flush=True)
"""
CHECK = """
import django; django.setup()
from portal.jobs.models import Allocation, Container, Job
from portal.jobs.rules import job_state
for job in Job.objects.all():
    outcomes = list(job.attempts.order_by("number").values_list("outcome", flat=True))
    assert job.state == job_state(job.intent, job.retries, outcomes), (job.pk, job.state, outcomes)
    seqs = list(job.events.order_by("seq").values_list("seq", flat=True))
    assert seqs == list(range(1, len(seqs) + 1)), (job.pk, seqs)
for part in Container.objects.all():
    held = Allocation.objects.filter(container=part, released_at=None).count()
    assert held == (part.state != "EXITED"), (part.pk, part.state, held)
print(Job.objects.count(), "jobs")
"""


def program(home: Path, text: str, *args: str) -> subprocess.Popen[str]:
    env = {**os.environ, "SCHEDULEARN_HOME": str(home), "DJANGO_SETTINGS_MODULE": "portal.settings"}
    command = [sys.executable, "-c", text, *args]
    return subprocess.Popen(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[str]) -> str:
    said, complaints = process.communicate(timeout=120)
    assert process.returncode == 0, complaints
    return said


def numbers(said: str, word: str) -> set[int]:
    """Of whole lines: the last one may be cut."""
    return {int(line.split()[1]) for line in said.splitlines(keepends=True) if line.endswith("\n") and word in line}


@pytest.mark.timeout(600)
def test_a_writer_that_is_killed_at_any_moment_loses_nothing_and_holds_up_nobody(tmp_path: Path) -> None:
    rng = random.Random(15)
    manage = [sys.executable, "manage.py", "migrate", "-v", "0"]
    subprocess.run(manage, cwd=ROOT, env={**os.environ, "SCHEDULEARN_HOME": str(tmp_path)}, check=True, timeout=300)
    finish(program(tmp_path, SETUP))
    accepted, ended = set[int](), set[int]()
    for _ in range(ROUNDS):
        writers = [program(tmp_path, WRITER, str(index)) for index in range(2)]
        for writer in writers:
            assert writer.stdout is not None
            first = writer.stdout.readline()
            assert "accepted" in first, first + complaints_of(writer)
            accepted |= numbers(first, "accepted")
            followed = writer.stdout
        for _ in range(rng.randint(1, 12)):  # each job is two lines
            line = followed.readline()
            accepted |= numbers(line, "accepted")
            ended |= numbers(line, "ended")
        time.sleep(rng.uniform(0, 0.05))  # into one of the transactions that follow
        for writer in rng.sample(writers, 2):
            assert writer.poll() is None, complaints_of(writer)
            assert writer.stdout is not None
            writer.kill()
            said = writer.stdout.read()  # not communicate(), which loses what readline() has read ahead
            writer.wait()
            accepted |= numbers(said, "accepted")
            ended |= numbers(said, "ended")
    with sqlite3.connect(tmp_path / "db.sqlite3") as database:
        assert column(database, "PRAGMA integrity_check") == ["ok"]
        assert column(database, "PRAGMA foreign_key_check") == []
        assert accepted <= set(column(database, "SELECT id FROM jobs_job"))
        assert ended <= set(column(database, "SELECT id FROM jobs_job WHERE state = 'SUCCEEDED'"))
    assert len(ended) > ROUNDS
    print(finish(program(tmp_path, CHECK)), len(accepted), len(ended))


def column(database: sqlite3.Connection, question: str) -> Sequence[object]:
    return [row[0] for row in database.execute(question)]


def complaints_of(process: subprocess.Popen[str]) -> str:
    process.kill()
    return process.communicate(timeout=60)[1]
