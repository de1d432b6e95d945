"""What can break, one function per fault: each breaks one thing once, at a moment and in a way drawn from the seed, and
mends it. The numbers are those of docs/reliability.md."""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import redis

from tests.cluster.between import Between
from tests.cluster.judge import Judge, Rules
from tests.cluster.lab import Lab
from tests.cluster.load import Client
from tests.cluster.machines import Machine, children, descendants, kill_dead
from tests.system.product import wait_for

SHORT_SECONDS = 22.0
"""A machine that is out of reach no longer than this keeps its jobs: the fence is 30 s and the lease up to 5 s old."""

TIGHT_MIB = 200


@dataclass
class Scene:
    lab: Lab
    judge: Judge
    client: Client
    rng: random.Random
    slow: list[str] = field(default_factory=list)
    """Bounds that were broken, as sentences."""

    def machine(self) -> Machine:
        return self.rng.choice(self.lab.lan.machines)

    def rest(self, least: float, most: float) -> None:
        time.sleep(self.rng.uniform(least, most))

    def within(self, seconds: float, what: str, look: Callable[[], object]) -> None:
        """A bound of the fault matrix: one that is broken is noted, and waited for three times as long."""
        began = time.monotonic()
        wait_for(what, look, 3 * seconds + 10)
        if (took := time.monotonic() - began) > seconds:
            self.slow.append(f"{what} after {took:.1f} s, the bound is {seconds:g} s")


@dataclass(frozen=True)
class Fault:
    key: str
    title: str
    inject: Callable[[Scene], None]
    rules: Rules = Rules()
    longest_seconds: float = 8.0
    """Of the jobs meanwhile."""
    pace_seconds: float = 1.6
    times: int = 10
    prepare: Callable[[Scene], Callable[[], None]] | None = None
    """Before the first and, by what it returns, after the last."""
    short: bool = False
    """Part of every test run, with few injections."""


# --- the portal's own programs -------------------------------------------------------------------------------------


def web_dies(scene: Scene) -> None:
    scene.lab.kill("web")
    scene.rest(0, 1)
    scene.lab.start("web")
    scene.within(10, "the portal answers again", scene.lab.answers)


def scheduler_dies(scene: Scene) -> None:
    scene.lab.kill("scheduler")
    scene.rest(0, 2)
    scene.lab.start("scheduler")
    scene.rest(1, 3)


def leader_dies(scene: Scene) -> None:
    """Another scheduler stands by and takes over; the dead one comes back as the one that stands by."""
    leader = next(name for name in scene.lab.processes if name.startswith("scheduler"))
    scene.lab.kill(leader)
    scene.rest(2, 4)
    scene.lab.start(leader)


def two_schedulers(scene: Scene) -> Callable[[], None]:
    scene.lab.start("scheduler:2")
    return lambda: scene.lab.kill("scheduler:2")


def leader_is_a_zombie(scene: Scene) -> None:
    """It is stopped, loses its session and its lead, and wakes up in the middle of what it did."""
    names = [name for name in scene.lab.processes if name.startswith("scheduler")]
    zombie = scene.rng.choice(names)
    process = scene.lab.processes[zombie]
    process.send_signal(signal.SIGSTOP)
    scene.lab.postgres.depose()
    scene.rest(2, 5)
    process.send_signal(signal.SIGCONT)
    scene.rest(1, 2)


def worker_dies(scene: Scene) -> None:
    """Its children too: whatever they did is not done. Jobs do not wait for it."""
    process = scene.lab.processes["worker"]
    family = children(process.pid)
    victim = scene.rng.choice([*family, process.pid])
    kill_dead(victim)
    scene.rest(0, 3)
    if victim == process.pid:
        for child in family:
            kill_dead(child)
        scene.lab.processes.pop("worker").wait()
        scene.lab.start("worker")


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
    """SIGTERM to all of ours, one after the other, and a start of each; machines and containers go on."""
    for name in ("scheduler", "worker", "web"):
        process = scene.lab.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(40)
    for name in ("web", "scheduler", "worker"):
        scene.lab.start(name)
    for machine in scene.lab.lan.machines:
        scene.lab.agents.pop(machine.name).terminate()
        scene.lab.start(f"agent:{machine.name}")
    scene.within(30, "the portal answers after the deploy", scene.lab.answers)


# --- databases -----------------------------------------------------------------------------------------------------


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
    if scene.rng.random() < 0.5:
        scene.lab.postgres.stop(signal.SIGQUIT)  # "immediate": as if it had crashed
    else:
        scene.lab.postgres.kill()
    scene.rest(0, 8)
    scene.lab.postgres.start()
    scene.within(10, "the portal answers after PostgreSQL is back", scene.lab.answers)
    scene.rest(1, 2)


# --- nodes ---------------------------------------------------------------------------------------------------------


def agent_dies(scene: Scene) -> None:
    machine = scene.machine()
    scene.lab.kill(f"agent:{machine.name}")
    scene.rest(0, scene.rng.choice((0, 2, 15)))
    scene.lab.start(f"agent:{machine.name}")
    scene.rest(0, 2)


def engine_dies(scene: Scene) -> None:
    machine = scene.machine()
    machine.engine.kill()
    scene.rest(0, 3)
    machine.engine.start()
    scene.rest(1, 2)


def engine_stands_still(scene: Scene) -> None:
    machine = scene.machine()
    machine.engine.signal(signal.SIGSTOP)
    scene.rest(2, 15)
    machine.engine.signal(signal.SIGCONT)
    scene.rest(1, 2)


def shim_dies(scene: Scene) -> None:
    """What holds a container for the engine; its exit code is lost with it."""
    kill_dead(a_shim(scene))
    scene.rest(1, 3)


def a_shim(scene: Scene) -> int:
    """Of any container of any machine, once there is one."""
    return int(scene.rng.choice(wait_for("a container runs", lambda: shims(scene), 30)))


def shims(scene: Scene) -> list[int]:
    tops = [machine.space.pid for machine in scene.lab.lan.machines if machine.space is not None]
    return [pid for top in tops for pid in descendants(top) if name_of(pid).startswith("containerd-shim")]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def first_process_dies(scene: Scene) -> None:
    """A container's supervisor, and with it all of the container."""
    for pid in children(a_shim(scene)):
        kill_dead(pid)
    scene.rest(1, 3)


def power_fails(scene: Scene) -> None:
    machine = scene.machine()
    scene.lab.agents.pop(machine.name)
    machine.power_off()
    scene.rest(0, 20)
    machine.power_on()
    scene.lab.start(f"agent:{machine.name}")
    scene.rest(3, 6)


def power_is_away(scene: Scene) -> None:
    """Longer than fence and margin: its jobs run elsewhere before it is back."""
    machine = scene.machine()
    victims = {run.job for run in scene.judge.living() if run.machine == machine.name}
    scene.lab.agents.pop(machine.name)
    machine.power_off()
    off = time.monotonic()

    def elsewhere() -> bool:
        return victims <= {run.job for run in scene.judge.seen() if run.began > off}

    scene.within(60, f"{len(victims)} jobs of a lost machine run elsewhere", elsewhere)
    machine.power_on()
    scene.lab.start(f"agent:{machine.name}")
    scene.rest(3, 6)


def cable_for_a_moment(scene: Scene) -> None:
    """Cut, or one direction lost, or flapping, for less than the fence."""
    machine = scene.machine()
    way: Literal["cable", "in", "out", "flap"] = scene.rng.choice(("cable", "in", "out", "flap"))
    length = scene.rng.uniform(1, SHORT_SECONDS)
    if way == "cable":
        machine.unplug()
        time.sleep(length)
        machine.plug()
    elif way == "flap":
        until_then = time.monotonic() + length
        while time.monotonic() < until_then:
            machine.unplug()
            scene.rest(0.2, 2)
            machine.plug()
            scene.rest(0.2, 1)
    else:
        rule = ["INPUT", "-s"] if way == "in" else ["OUTPUT", "-d"]
        machine.run("iptables", "-I", *rule, scene.lab.lan.address, "-j", "DROP")
        time.sleep(length)
        machine.run("iptables", "-D", *rule, scene.lab.lan.address, "-j", "DROP")
    scene.rest(6, 8)  # its leases are renewed before the next cut


def cable_for_long(scene: Scene) -> None:
    """Beyond fence and margin: what ran there ends itself before it runs elsewhere."""
    machine = scene.machine()
    victims = {run.job for run in scene.judge.living() if run.machine == machine.name}
    machine.unplug()
    cut = time.monotonic()

    def elsewhere() -> bool:
        again = {run.job for run in scene.judge.seen() if run.began > cut and run.machine != machine.name}
        over = {run.job for run in scene.judge.seen() if run.code is not None}
        return victims <= again | over

    scene.within(60, f"{len(victims)} jobs of a cut off machine run elsewhere", elsewhere)
    machine.plug()
    scene.rest(5, 8)


def engine_behind_a_wall(scene: Scene) -> Callable[[], None]:
    """The first machine's agent speaks to its engine through ``Between`` until the end."""
    machine = scene.lab.lan.machines[0]
    between = Between(machine.folder / "between.sock", machine.engine.socket)
    scene.lab.agent_env[machine.name] = {"DOCKER_HOST": f"unix://{machine.folder}/between.sock"}
    scene.lab.kill(f"agent:{machine.name}")
    scene.lab.start(f"agent:{machine.name}")
    BETWEEN[id(scene.lab)] = between

    def back() -> None:
        scene.lab.agent_env.pop(machine.name)
        scene.lab.kill(f"agent:{machine.name}")
        scene.lab.start(f"agent:{machine.name}")
        BETWEEN.pop(id(scene.lab)).close()

    return back


BETWEEN: dict[int, Between] = {}


def engine_is_broken(scene: Scene) -> None:
    between = BETWEEN[id(scene.lab)]
    between.mood = scene.rng.choice(("slow", "cut", "refuse"))
    scene.rest(2, 8)
    between.mood = "well"
    scene.rest(1, 3)


# --- people and jobs -----------------------------------------------------------------------------------------------


def memory_is_short(scene: Scene) -> None:
    asked = scene.client.submit(8, extra=f"--mib {2 * TIGHT_MIB}")
    asked.own_fault = True
    run = wait_for("it runs", lambda: next((run for run in scene.judge.living() if run.job == asked.job), None), 60)
    machine = scene.lab.machine(run.machine)
    found = machine.docker("ps", "-q", "--filter", f"label=sl.job={asked.job}").stdout.decode().split()
    machine.docker("update", f"--memory={TIGHT_MIB}m", f"--memory-swap={TIGHT_MIB}m", *found)


def log_floods(scene: Scene) -> None:
    scene.client.submit(scene.rng.uniform(2, 5), rate=60_000)
    scene.rest(1, 4)


def cancel_races(scene: Scene) -> None:
    """At any moment: before it is placed, while it starts, runs or ends."""
    asked = scene.client.submit(scene.rng.uniform(0.5, 3))
    scene.rest(0, 5)
    scene.client.cancel(asked)


def policy_changes(scene: Scene) -> None:
    for _ in range(5):
        switch(scene, scene.rng.choice(("fifo", "fair_share", "srjf", "round_robin", "tiresias")))
        scene.rest(0.2, 1)
    if scene.rng.random() < 0.5:
        scheduler_dies(scene)


def switch(scene: Scene, policy: str) -> None:
    def switched() -> bool:
        answer = scene.client.ask("PUT", "policy/", json={"policy": policy, "params": {}})
        return answer is not None and answer.status_code == 200

    wait_for(f"the policy is {policy}", switched, 20)


def first_policy_again(scene: Scene) -> Callable[[], None]:
    before = scene.client.get("policy/")["policy"]
    return lambda: switch(scene, before)


LOSES = Rules(calm=False)

FAULTS = (
    Fault("F1", "kill -9 of the web process", web_dies, short=True),
    Fault("F2", "kill -9 of the scheduler", scheduler_dies, short=True),
    Fault("F3", "kill -9 of the leading of two schedulers", leader_dies, prepare=two_schedulers),
    Fault("F4", "a scheduler stopped, deposed, and woken", leader_is_a_zombie, prepare=two_schedulers),
    Fault("F5", "kill -9 of the Celery worker or its child", worker_dies),
    Fault("F6", "Celery's messages three times, shuffled", tasks_come_again),
    Fault("F7", "kill -9 of an agent, back within 15 s", agent_dies, short=True),
    Fault("F8a", "kill -9 of dockerd", engine_dies, short=True),
    Fault("F8b", "dockerd stopped for up to 15 s", engine_stands_still),
    Fault("F9", "kill -9 of a containerd shim", shim_dies, LOSES),
    Fault("F9b", "kill -9 of a container's first process", first_process_dies, LOSES),
    Fault("F10a", "power of a machine fails, back within 20 s", power_fails, LOSES, short=True),
    Fault("F10b", "power of a machine is away", power_is_away, LOSES, longest_seconds=20, times=10),
    Fault(
        "F11a", "a machine cut off for up to 22 s", cable_for_a_moment, longest_seconds=20, pace_seconds=3, short=True
    ),
    Fault("F11b", "a machine cut off for longer", cable_for_long, LOSES, longest_seconds=40, pace_seconds=4, times=10),
    Fault("F13", "Redis killed, emptied or frozen", redis_fails, short=True),
    Fault("F14", "PostgreSQL killed or stopped, back within 8 s", postgres_fails, short=True),
    Fault("F18", "a job takes more memory than it may", memory_is_short),
    Fault("F22", "a job floods its log", log_floods),
    Fault("F24", "cancel at any moment", cancel_races, short=True),
    Fault("F25", "the policy changes under load", policy_changes, LOSES, prepare=first_policy_again),
    Fault("F26", "an engine that is slow, cut off or broken", engine_is_broken, prepare=engine_behind_a_wall),
    Fault("F28", "a deploy: all of ours stopped and started", everything_is_deployed),
)
