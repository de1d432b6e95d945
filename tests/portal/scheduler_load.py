"""A load test: many jobs, several schedulers that ignore each other, agents, and a policy that keeps being switched.

``python -m tests.portal.scheduler_load`` runs a smaller one on the migrated SQLite database of its home and prints the
result as JSON.
"""

import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field


@dataclass
class LoadResult:
    """The result of a load test."""

    cycles: int = 0
    dropped: int = 0
    switches: int = 0
    database_errors: list[str] = field(default_factory=list)
    unfinished: int = 0
    started_twice: int = 0
    held_twice: int = 0
    crashed: list[str] = field(default_factory=list)


def run_load(
    jobs: int, *, schedulers: int = 2, switch_every: float | None = None, switches: int = 0, seconds: float = 100
) -> LoadResult:
    """Run until all jobs have finished or the time (seconds) is up. The lock that keeps schedulers apart must be off.

    The policy is switched every ``switch_every`` seconds. On a slow machine the jobs may be done after a few switches, so
    as many jobs are submitted again until there were ``switches``.
    """
    from django.db import Error, connection

    from portal.jobs.models import FINISHED_STATES, Job
    from portal.scheduler import cycle
    from portal.scheduler.services import switch_policy
    from tests.portal.control_world import heartbeat, lead, queue, ready_node, run_agents

    chance = random.Random(7)
    nodes = (("a", 8), ("b", 8), ("c", 4))
    for name, gpus in nodes:
        ready_node(name, gpus)

    def submit_all() -> None:
        for _ in range(jobs):
            least = chance.choice([1, 1, 1, 2, 4])
            most = min(4, least + chance.choice([0, 0, 0, 2]))
            kind = {"launcher": "command", "entry": "true"} if most == least else {}
            queue(least, most, owner=chance.choice(["alice", "bob"]), **kind)

    submit_all()
    epoch, result, over = lead(), LoadResult(), threading.Event()

    def forever(work: Callable[[], object], rest: float) -> Callable[[], None]:
        def loop() -> None:
            try:
                while not over.wait(rest):
                    try:
                        work()
                    except Error as error:
                        result.database_errors.append(f"{type(error).__name__}: {error}"[:200])
                        connection.close()
            except Exception as error:  # a thread's death must fail the test, not hide
                result.crashed.append(f"{type(error).__name__}: {error}")
            finally:
                connection.close()

        return loop

    def run_cycle() -> None:
        done = cycle.run(epoch)
        result.cycles += 1
        result.dropped += len(done.applied.dropped)
        if done.error:
            result.crashed.append(str(done.error))

    def work() -> None:
        heartbeat()
        run_agents(finish=True, hasty=True)

    policies = itertools.cycle([("fifo", {"strict": False}), ("round_robin", {}), ("elastic_fifo", {}), ("fifo", {})])

    def switch() -> None:
        switch_policy(None, *next(policies))
        result.switches += 1

    loops = [forever(run_cycle, 0.01) for _ in range(schedulers)] + [forever(work, 0.01)]
    if switch_every:
        loops.append(forever(switch, switch_every))
    threads = [threading.Thread(target=loop) for loop in loops]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    left = Job.objects.exclude(state__in=FINISHED_STATES)
    try:
        while time.monotonic() < until and not result.crashed:
            if not left.exists():
                if result.switches >= switches:
                    break
                submit_all()
            time.sleep(0.1)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    check_rows(result)
    return result


def check_rows(result: LoadResult) -> None:
    """Count jobs that are unfinished or started twice, and GPUs that were held twice at any moment."""
    from django.db.models import Count

    from portal.jobs.models import Allocation, Job

    result.unfinished = Job.objects.exclude(state="SUCCEEDED").count()
    result.started_twice = Job.objects.annotate(n=Count("attempts")).exclude(n=1).count()
    history = Allocation.objects.order_by("gpu", "allocated_at").values_list("gpu", "allocated_at", "released_at")
    for (gpu, _, released), (next_gpu, allocated, _) in itertools.pairwise(history):
        if gpu == next_gpu and (released is None or allocated < released):
            result.held_twice += 1


def main() -> None:
    import django

    django.setup()
    from portal.scheduler import cycle

    cycle.take_lock = lambda: True
    print(json.dumps(asdict(run_load(int(sys.argv[1]), switch_every=0.1, switches=10))))


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    main()
