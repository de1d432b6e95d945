"""Writers to a home's SQLite database, each a process that may be killed: ``python -m tests.portal.sqlite_writers``.

It puts a project and a node into the migrated database and prints "ready". For each line ``write INDEX FILE`` or ``check FILE`` of its input it forks a
process, whose output goes to the file, and prints its pid. Forked, because each start of Django takes seconds.
"""

import os
import signal
import sys
from collections.abc import Callable

import django

django.setup()

from django.db import connections, transaction  # noqa: E402

from portal.cluster.models import Gpu  # noqa: E402
from portal.jobs import lifecycle  # noqa: E402
from portal.jobs.models import Allocation, Container, Job  # noqa: E402
from portal.jobs.rules import job_state  # noqa: E402
from portal.projects.models import Project  # noqa: E402
from tests.portal.jobs_world import (  # noqa: E402
    exit,
    make_code,
    make_job,
    make_node,
    make_project,
    make_user,
    place,
    run,
)


def write(index: str) -> None:
    """Runs one job after the other on one GPU, without end. Prints each commit that the database has acknowledged."""
    gpu = Gpu.objects.get(index=int(index))
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


def check() -> None:
    for job in Job.objects.all():
        outcomes = list(job.attempts.order_by("number").values_list("outcome", flat=True))
        assert job.state == job_state(job.intent, job.retries, outcomes), (job.pk, job.state, outcomes)
        seqs = list(job.events.order_by("seq").values_list("seq", flat=True))
        assert seqs == list(range(1, len(seqs) + 1)), (job.pk, seqs)
    for part in Container.objects.all():
        held = Allocation.objects.filter(container=part, released_at=None).count()
        assert held == (part.state != "EXITED"), (part.pk, part.state, held)
    print(Job.objects.count(), "jobs", flush=True)


TASKS: dict[str, Callable[..., None]] = {"write": write, "check": check}


def fork(task: str, *arguments: str) -> int:
    if pid := os.fork():
        return pid
    *values, path = arguments
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for handle in (1, 2):
        os.dup2(output, handle)
    try:
        TASKS[task](*values)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def main() -> None:
    make_code(make_project(make_user("alice")))
    make_node("one", gpus=2)
    connections.close_all()  # a connection must not be carried into another process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that no dead process is left for anyone to wait for
    print("ready", flush=True)
    for line in sys.stdin:
        print(fork(*line.split()), flush=True)


if __name__ == "__main__":
    main()
