"""The time of one scheduling cycle in a large lab, on a separate PostgreSQL.

``python -m tests.bench.cycle [QUEUED [FINISHED [NODES]]]`` prints milliseconds of a cycle that changes nothing, of one
that starts a job, of the snapshot and of the policy alone.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tests.bench.portal import portal_here
from tests.bench.targets import Target, verdict

QUEUED, FINISHED, NODES, GPUS_PER_NODE = 1000, 10_000, 128, 8
PEOPLE, SCRIPTS = 50, 200
REPEATS = 9
MAX_CYCLE_MS = 300
"""The target for any whole cycle of a lab of that size."""


@dataclass(frozen=True)
class CycleTimes:
    """Medians, in milliseconds."""

    idle_ms: float
    idle_cpu_ms: float
    """Processor time of the scheduler without the database, which other load does not affect."""
    busy_ms: float
    busy_cpu_ms: float
    snapshot_ms: float
    first_snapshot_ms: float
    plan_ms: float
    queries: int
    """The number of queries of the snapshot; the next ones are of whole cycles."""
    idle_queries: int
    busy_queries: int


def past_jobs(count: int) -> None:
    """Create finished jobs of the last 30 days, of programs of many users, with their GPUs and times."""
    from django.utils import timezone

    from portal.cluster.models import Gpu
    from portal.jobs.models import Allocation, Attempt, Container, Job, LogStream
    from tests.portal.control_world import project_of
    from tests.portal.jobs_world import make_code, make_environment

    now, environment = timezone.now(), make_environment()
    projects = [project_of(f"person{number}") for number in range(PEOPLE)]
    codes = [project.code_versions.first() or make_code(project) for project in projects]
    gpus = list(Gpu.objects.order_by("pk"))
    jobs = []
    for number in range(count):
        begin = now - timedelta(days=30) + timedelta(days=29.9) * number / count
        length = timedelta(minutes=20 + number % 97)
        who = number % PEOPLE
        jobs.append(
            Job(
                project=projects[who], code=codes[who], environment=environment, submitted_by=projects[who].created_by,
                submitted_at=begin - timedelta(minutes=5), name="past", launcher="horovod", time_limit_seconds=86400,
                entry=f"train{number % SCRIPTS}.py", arguments=["--seed", str(number % 3)],
                state="SUCCEEDED" if number % 4 else "FAILED",
                started_at=begin, finished_at=min(begin + length, now),
            )
        )  # fmt: skip
    jobs = Job.objects.bulk_create(jobs, batch_size=500)
    attempts = Attempt.objects.bulk_create(
        [
            Attempt(job=job, number=1, created_at=job.started_at, started_at=job.started_at, ended_at=job.finished_at,
                    outcome=job.state.lower(), secret="s")
            for job in jobs
            if job.started_at
        ],
        batch_size=500,
    )  # fmt: skip
    parts = Container.objects.bulk_create(
        [
            Container(attempt=attempt, node=gpus[number % len(gpus)].node, index=0, role="host", name=f"past{number}",
                      spec={}, assigned_at=attempt.created_at, state="EXITED", exited_at=attempt.ended_at)
            for number, attempt in enumerate(attempts)
        ],
        batch_size=500,
    )  # fmt: skip
    LogStream.objects.bulk_create(
        [LogStream(container=part, name="0", first_at=part.assigned_at + timedelta(seconds=9)) for part in parts],
        batch_size=500,
    )
    Allocation.objects.bulk_create(
        [
            Allocation(gpu=gpus[(number + each) % len(gpus)], attempt=part.attempt, container=part,
                       allocated_at=part.assigned_at, released_at=part.exited_at)
            for number, part in enumerate(parts)
            for each in range(1 + number // SCRIPTS % 8)  # each program on all sizes, so that its speeds are known
        ],
        batch_size=500,
    )  # fmt: skip


def measure(queued: int, finished: int, nodes: int) -> CycleTimes:
    """Fill an empty, migrated database with a busy lab, past jobs and a long queue, and time cycles."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from portal.jobs.models import Container
    from portal.scheduler import snapshot
    from portal.scheduler.job_history import History
    from scheduling import registry
    from tests import servers
    from tests.portal.control_world import heartbeat, queue, ready_node, run_agents, turn
    from tests.portal.jobs_world import exit

    for number in range(nodes):
        ready_node(f"node{number}", GPUS_PER_NODE)
    past_jobs(finished)
    servers.analyse()
    history = History()
    running = nodes * GPUS_PER_NODE // 5
    for number in range(queued + running):
        queue(
            1 + number % 4, 4 + number % 4, owner=f"person{number % PEOPLE}", elastic=number % 2 == 0,
            entry=f"train{number % SCRIPTS}.py", resumable=number % 3 == 0,
        )  # fmt: skip
    while turn(history=history).applied.started:
        heartbeat()
        run_agents()

    def end_one() -> None:
        run_agents()
        part = Container.objects.filter(role="host", state="RUNNING", attempt__job__elastic=False).first()
        assert part is not None
        for other in part.attempt.containers.all():
            exit(other)

    policy = registry.build("elastic_fifo", {})
    idle, busy = [], []
    for _ in range(REPEATS):
        heartbeat()
        idle.append(wall_and_cpu_ms(lambda: turn(history=history)))
        end_one()
        heartbeat()
        busy.append(wall_and_cpu_ms(lambda: turn(history=history)))
    heartbeat()
    with CaptureQueriesContext(connection) as asked:
        seen = snapshot.take(history=history)
    with CaptureQueriesContext(connection) as asked_when_idle:
        turn(history=history)
    end_one()
    heartbeat()
    with CaptureQueriesContext(connection) as asked_when_busy:
        turn(history=history)
    print(f"{sum(job.running for job in seen.jobs)} jobs run, {sum(job.waiting for job in seen.jobs)} wait")
    return CycleTimes(
        idle_ms=statistics.median(wall for wall, _ in idle),
        idle_cpu_ms=statistics.median(cpu for _, cpu in idle),
        busy_ms=statistics.median(wall for wall, _ in busy),
        busy_cpu_ms=statistics.median(cpu for _, cpu in busy),
        snapshot_ms=statistics.median(wall_ms(lambda: snapshot.take(history=history)) for _ in range(REPEATS)),
        first_snapshot_ms=statistics.median(wall_ms(snapshot.take) for _ in range(3)),
        plan_ms=statistics.median(wall_ms(lambda: policy.plan(seen)) for _ in range(REPEATS)),
        queries=len(asked),
        idle_queries=len(asked_when_idle),
        busy_queries=len(asked_when_busy),
    )


def wall_and_cpu_ms(work: Callable[[], Any]) -> tuple[float, float]:
    """Return milliseconds of wall time and of processor time."""
    began = time.process_time()
    wall = wall_ms(work)
    return wall, (time.process_time() - began) * 1000


def wall_ms(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def main(queued: int = QUEUED, finished: int = FINISHED, nodes: int = NODES) -> int:
    with portal_here():
        found = measure(queued, finished, nodes)
    print(f"{queued} jobs queued, {finished} finished, {nodes * GPUS_PER_NODE} GPUs, on PostgreSQL")
    for what, ms, cpu_ms, queries in (
        ("a turn that changes nothing: ", found.idle_ms, found.idle_cpu_ms, found.idle_queries),
        ("a turn that starts a job:    ", found.busy_ms, found.busy_cpu_ms, found.busy_queries),
    ):
        print(f"{what}{ms:.0f} ms, {cpu_ms:.0f} ms of them computing, in {queries} queries")
    print(
        f"of that the snapshot:        {found.snapshot_ms:.0f} ms in {found.queries} queries, the policy: {found.plan_ms:.0f} ms"
    )
    print(f"the first snapshot, which reads the whole past: {found.first_snapshot_ms:.0f} ms")
    return verdict(
        [
            Target("a cycle that changes nothing", found.idle_ms, MAX_CYCLE_MS, "ms"),
            Target("a cycle that starts a job", found.busy_ms, MAX_CYCLE_MS, "ms"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main(*(int(text) for text in sys.argv[1:])))
