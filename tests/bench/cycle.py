"""How long one turn of the scheduler takes with many jobs, on a database of its own.

``python -m tests.bench.cycle [JOBS]`` prints milliseconds of a turn that changes nothing, of one that starts a job, and
of the policy alone. With DATABASE_URL and REDIS_URL set (``python -m tests.servers``) it measures PostgreSQL.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NODES, GPUS_PER_NODE = 16, 8
REPEATS = 9


@dataclass(frozen=True)
class Measured:
    """Medians, in milliseconds."""

    jobs: int
    idle_ms: float
    busy_ms: float
    snapshot_ms: float
    plan_ms: float


def measure(jobs: int) -> Measured:
    """On an empty, migrated database: fills it with a lab at work and a long queue."""
    from portal.control import snapshot
    from portal.jobs.models import Container
    from scheduling import registry
    from tests.portal.control_world import agents_do_as_told, heartbeat, queue, ready_node, turn
    from tests.portal.jobs_world import exit

    for number in range(NODES):
        ready_node(f"node{number}", GPUS_PER_NODE)
    for number in range(jobs):
        queue(1 + number % 4, 4 + number % 4, elastic=number % 2 == 0)
    while turn().applied.started:
        agents_do_as_told()

    def end_one() -> None:
        agents_do_as_told()
        part = Container.objects.filter(role="host", state="RUNNING", attempt__job__elastic=False).first()
        assert part is not None
        for other in part.attempt.containers.all():
            exit(other)

    policy = registry.build("elastic_fifo", {})
    idle, busy = [], []
    for _ in range(REPEATS):
        heartbeat()
        idle.append(clock(turn))
        end_one()
        busy.append(clock(turn))
    heartbeat()
    seen = snapshot.take()
    return Measured(
        jobs=jobs,
        idle_ms=statistics.median(idle),
        busy_ms=statistics.median(busy),
        snapshot_ms=statistics.median(clock(snapshot.take) for _ in range(REPEATS)),
        plan_ms=statistics.median(clock(lambda: policy.plan(seen)) for _ in range(REPEATS)),
    )


def clock(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def run(jobs: int = 1000) -> Measured:
    """With a fresh database; the caller has not set Django up yet."""
    with tempfile.TemporaryDirectory(prefix="sl-bench-") as home:
        os.environ["SCHEDULEARN_HOME"] = home
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
        os.environ.setdefault("LOG_LEVEL", "ERROR")
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        return measure(jobs)


if __name__ == "__main__":
    found = run(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    print(f"{found.jobs} jobs, {NODES * GPUS_PER_NODE} GPUs")
    print(f"a turn that changes nothing: {found.idle_ms:.0f} ms")
    print(f"a turn that starts a job:    {found.busy_ms:.0f} ms")
    print(f"of that the snapshot:        {found.snapshot_ms:.0f} ms, the policy: {found.plan_ms:.0f} ms")
