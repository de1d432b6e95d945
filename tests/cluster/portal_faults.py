"""Faults of the portal's own programs and of its databases. Each function breaks one thing once, in a way drawn from the
seed, and repairs it."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import redis

from runners.launch.fence import T_FENCE_SECONDS
from tests.clock import ShiftedClock
from tests.cluster.judge import Run
from tests.cluster.lab import SLOTS
from tests.cluster.machines import kill_dead
from tests.cluster.scene import Scene
from tests.space import children
from tests.system.product import wait_for


def web_dies(scene: Scene) -> None:
    scene.lab.kill("web")
    scene.rest(0, 1)
    scene.lab.start("web")
    scene.within(10, "the portal answers again", scene.lab.answers)


def scheduler_dies(scene: Scene) -> None:
    epoch = scene.lab.postgres.epoch()
    scene.lab.kill("scheduler")
    scene.rest(0, 2)
    scene.lab.start("scheduler")
    scene.leads_again(epoch)
    scene.rest(1, 3)


def leader_dies(scene: Scene) -> None:
    """Another scheduler stands by and takes over; the dead one comes back as the one that stands by."""
    epoch = scene.lab.postgres.epoch()
    leader = next(name for name in scene.lab.processes if name.startswith("scheduler"))
    scene.lab.kill(leader)
    scene.leads_again(epoch)
    scene.rest(1, 3)
    scene.lab.start(leader)


def two_schedulers(scene: Scene) -> Callable[[], None]:
    scene.lab.start("scheduler:2")
    return lambda: scene.lab.kill("scheduler:2")


def leader_is_a_zombie(scene: Scene) -> None:
    """It is stopped, loses its session and its lead, and wakes up in the middle of what it did."""
    names = [name for name in scene.lab.processes if name.startswith("scheduler")]
    zombie = scene.rng.choice(names)
    process = scene.lab.processes[zombie]
    epoch = scene.lab.postgres.epoch()
    process.send_signal(signal.SIGSTOP)
    scene.lab.postgres.depose()
    scene.leads_again(epoch)
    scene.rest(1, 3)
    process.send_signal(signal.SIGCONT)
    scene.rest(1, 2)


def worker_dies(scene: Scene) -> None:
    """All of it, or the child that does its tasks. Jobs do not wait for it."""
    if scene.rng.random() < 0.5:
        kill_dead(scene.rng.choice(children_of_the_worker(scene)))
        scene.rest(1, 3)
        children_of_the_worker(scene)
    else:
        scene.lab.kill("worker")
        scene.rest(0, 3)
        scene.lab.start("worker")


def children_of_the_worker(scene: Scene) -> list[int]:
    """Waits for them. Celery gives up when its first child dies at once; as systemd and compose do, we start it again."""

    def look() -> list[int]:
        if scene.lab.processes["worker"].poll() is not None:
            scene.lab.kill("worker")
            scene.lab.start("worker")
        return children(scene.lab.processes["worker"].pid)

    return list(wait_for("the worker has a child", look, 30))


def tasks_come_again(scene: Scene) -> None:
    """Each waiting message of Celery is delivered three times, in another order."""
    process = scene.lab.processes["worker"]
    process.send_signal(signal.SIGSTOP)
    try:
        scene.rest(1, 3)
        with redis.Redis.from_url(scene.lab.redis.url) as broker:
            waiting = broker.lrange("celery", 0, -1) * 2
            scene.rng.shuffle(waiting)
            if waiting:
                broker.rpush("celery", *waiting)
    finally:
        process.send_signal(signal.SIGCONT)


def everything_is_deployed(scene: Scene) -> None:
    """SIGTERM to all of ours, one after the other, what a new version does to the database, and a start of each; machines
    and containers go on."""
    for name in ("scheduler", "worker", "web"):
        process = scene.lab.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(40)
    scene.lab.migrate()
    for name in ("web", "scheduler", "worker"):
        scene.lab.start(name)
    for machine in scene.lab.lan.machines:
        scene.lab.agents.pop(machine.name).terminate()
        scene.lab.start(f"agent:{machine.name}")
    scene.within(30, "the portal answers after the deploy", scene.lab.answers)


PORTAL = ("scheduler", "worker", "web")
FENCED_SECONDS = T_FENCE_SECONDS + 5 + 10
"""Until the last process has ended: the fence after a lease that was just renewed, and the grace."""


def away(seconds: float) -> Callable[[Scene], None]:
    """The portal is gone for so long, with a job that writes on every GPU, jobs that end meanwhile, and more that wait.

    Those that would run on are fenced, begin again when the portal is back, and are cancelled then.
    """

    def portal_is_away(scene: Scene) -> None:
        gpus = SLOTS * len(scene.lab.lan.machines)
        with scene.load.turn:
            wait_for("the GPUs are free", lambda: not scene.client.open_jobs(), 180, every=0.5)
            limits = [int(seconds / 2) + 60, 86_400]  # the time of absence is not the job's
            talkers = [
                scene.client.submit(86_400, rate=scene.rng.choice((50, 500, 2000)), time_limit_seconds=limits[i % 2])
                for i in range(gpus - 2)
            ]
            shorts = [scene.client.submit(scene.rng.uniform(12, 25), rate=500) for _ in range(2)]
            for _ in range(2 * gpus):
                scene.client.submit(scene.rng.uniform(1, 8))
            jobs = {each.job for each in (*talkers, *shorts)}
            wait_for("they run", lambda: jobs <= {run.job for run in scene.judge.living()}, 60)
            gone = time.monotonic()
            for name in PORTAL:
                scene.lab.kill(name)
            time.sleep(seconds)
            unfenced = [
                run.job for run in scene.judge.seen() if run.job in jobs and outlives(run, gone + FENCED_SECONDS)
            ]
            assert seconds < FENCED_SECONDS or not unfenced, f"jobs {unfenced} ran on beyond the fence"
            back = time.monotonic()
            for name in reversed(PORTAL):
                scene.lab.start(name)
            scene.within(10, "the portal answers again", scene.lab.answers, back)
        again = {each.job for each in talkers}
        scene.within(60, "what was fenced runs again", lambda: again <= {run.job for run in scene.judge.living()}, back)
        scene.rest(1, 3)
        for each in talkers:
            scene.client.cancel(each)

    return portal_is_away


def outlives(run: Run, when: float) -> bool:
    return run.ended is None or run.ended > when


def redis_fails(scene: Scene) -> None:
    way = scene.rng.choice(("kill", "flush", "freeze"))
    if way == "kill":
        scene.lab.redis.kill()
        scene.rest(0, 6)
        scene.lab.redis.start()
    elif way == "flush":
        with redis.Redis.from_url(scene.lab.redis.url) as client:
            client.flushall()
    else:
        scene.lab.redis.freeze()
        scene.rest(1, 6)
        scene.lab.redis.thaw()
    scene.rest(1, 2)


def postgres_fails(scene: Scene) -> None:
    epoch = scene.lab.postgres.epoch()
    if scene.rng.random() < 0.5:
        scene.lab.postgres.stop(signal.SIGQUIT)  # "immediate": as if it had crashed
    else:
        scene.lab.postgres.kill()
    scene.rest(0, 8)
    scene.lab.postgres.start()
    back = time.monotonic()
    scene.within(10, "the portal answers after PostgreSQL is back", scene.lab.answers, back)
    scene.leads_again(epoch, back)
    scene.rest(1, 2)


JUMPS = (3600, -3600, 86_400, -86_400, -5)


def clocks(scene: Scene) -> Callable[[], None]:
    """The portal's programs and the first machine's agent have clocks of their own from now on, until the end."""
    machine = scene.lab.lan.machines[0]
    for name in ("portal", "agent"):
        clock_folder(scene, name).mkdir(exist_ok=True)
        scene.clocks[name] = ShiftedClock(clock_folder(scene, name))

    def restart() -> None:
        for name in ("web", "scheduler", "worker", f"agent:{machine.name}"):
            scene.lab.kill(name)
            scene.lab.start(name)
        wait_for("the portal answers", scene.lab.answers)

    before = dict(scene.lab.env)
    scene.lab.env.update(scene.clocks["portal"].env)
    scene.lab.agent_env[machine.name] = scene.clocks["agent"].env
    restart()

    def back() -> None:
        scene.lab.env.clear()
        scene.lab.env.update(before)
        scene.lab.agent_env.pop(machine.name)
        restart()

    return back


def clock_folder(scene: Scene, name: str) -> Path:
    return scene.lab.lan.folder / f"clock-{name}"


def clock_jumps(scene: Scene) -> None:
    """The wall clock only, there and back: no machine's sense of how much time has passed."""
    name, offset = scene.rng.choice(("portal", "agent")), scene.rng.choice(JUMPS)
    scene.clocks[name].set(offset)
    scene.rest(4, 10)
    scene.clocks[name].set(0)
    scene.rest(3, 6)
