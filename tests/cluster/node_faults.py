"""Faults of machines: their agents, engines, containers, cables and power."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from runners.runtimes.host_config import AgentIdentity
from tests.cluster.between import Between
from tests.cluster.machines import Machine, descendants, kill_dead
from tests.cluster.scene import Scene
from tests.space import children
from tests.system.product import wait_for

SHORT_SECONDS = 25.0
"""A machine that is out of reach no longer than this keeps its jobs (see ``runners/launch/fence.py``)."""


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
    machine, victims = busy_machine(scene)
    scene.lab.agents.pop(machine.name)
    gone = time.monotonic()
    machine.power_off()
    try:
        scene.is_missed(machine, gone)
        wait_until_elsewhere(scene, victims, machine, gone)
    finally:
        machine.power_on()
        scene.lab.start(f"agent:{machine.name}")
    scene.rest(3, 6)


def busy_machine(scene: Scene) -> tuple[Machine, set[int]]:
    """One with a job that would run on for longer than any patience, and what runs there."""
    long = scene.client.submit(60)
    run = wait_for("it runs", lambda: next((run for run in scene.judge.living() if run.job == long.job), None), 60)
    return scene.lab.machine(run.machine), {each.job for each in scene.judge.living() if each.machine == run.machine}


def wait_until_elsewhere(scene: Scene, victims: set[int], machine: Machine, since: float) -> None:
    """Those that had come to their end, or were cancelled, need not run again."""

    def elsewhere() -> bool:
        runs = scene.judge.seen()
        again = {run.job for run in runs if run.began > since and run.machine != machine.name}
        over = {run.job for run in runs if run.code is not None}
        cancelled = {asked.job for asked in scene.client.asked if asked.cancelled_at is not None}
        return victims <= again | over | cancelled

    scene.within(60, f"{len(victims)} jobs of {machine.name} run elsewhere", elsewhere, since)


def cable_for_a_moment(scene: Scene) -> None:
    """Cut, or one direction lost, or flapping, for less than the fence."""
    machine = scene.machine()
    way: Literal["cable", "in", "out", "flap"] = scene.rng.choice(("cable", "in", "out", "flap"))
    length = scene.rng.choice((scene.rng.uniform(1, SHORT_SECONDS), SHORT_SECONDS))
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
    machine, victims = busy_machine(scene)
    gone = time.monotonic()
    machine.unplug()
    try:
        scene.is_missed(machine, gone)
        wait_until_elsewhere(scene, victims, machine, gone)
    finally:
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


def orphans_appear(scene: Scene) -> None:
    """A container and a network appear that no attempt needs, with this node's labels, and two with another's."""
    machine, number = scene.machine(), 9_000_000 + scene.rng.randrange(1_000_000)
    identity = json.loads((machine.folder / "agent" / "node.json").read_text())
    ours = make_orphan(scene, machine, number, identity["installation"], str(identity["node"]))
    foreign = make_orphan(scene, machine, number + 1, "another-lab", "1")

    def there() -> set[str]:
        containers = machine.docker("ps", "-a", "--format", "{{.Names}}").stdout.decode().split()
        networks = machine.docker("network", "ls", "--format", "{{.Name}}").stdout.decode().split()
        return {*containers, *networks}

    scene.within(60, f"orphans of {machine.name} are gone", lambda: not there() & ours)
    assert foreign <= there(), "what belongs to another installation was removed"
    container, network = sorted(foreign, key=len, reverse=True)
    machine.docker("rm", "-f", container)
    machine.docker("network", "rm", network)


def make_orphan(scene: Scene, machine: Machine, job: int, installation: str, node: str) -> set[str]:
    identity = AgentIdentity(installation, node)
    container, network = identity.engine_name(f"sl-{job}-a1-0"), identity.engine_name(f"sl-{job}-a1")
    labels = {"installation": installation, "node": node, "name": f"sl-{job}-a1-0", "job": job, "attempt": job}
    labels |= {"epoch": 1, "network": network}
    flags = [part for key, value in labels.items() for part in ("--label", f"sl.{key}={value}")]
    machine.docker("run", "-d", "--network", "none", "--name", container, *flags, scene.lab.base_image, "sleep", "900")
    machine.docker("network", "create", "--internal", *flags[:4], network)
    return {container, network}


def container_vanishes(scene: Scene) -> None:
    """A running job's container is removed behind the agent's back."""
    run = wait_for("a job runs", lambda: next(iter(scene.judge.living()), None), 60)
    machine = scene.lab.machine(run.machine)
    found = machine.docker("ps", "-aq", "--filter", f"label=sl.job={run.job}").stdout.decode().split()
    machine.docker("rm", "-f", *found, check=False)
    scene.rest(1, 3)


FULL_MIB = 64


def small_disk(scene: Scene) -> Callable[[], None]:
    """The first machine's agent works on a file system of 64 MiB from now on, until the end."""
    machine = scene.lab.lan.machines[0]
    home = machine.folder / "small"
    scene.lab.kill(f"agent:{machine.name}")
    home.mkdir()
    machine.run("mount", "-t", "tmpfs", "-o", f"size={FULL_MIB}m", "small", str(home))
    machine.run("cp", "-a", f"{machine.folder}/agent/node.json", str(home))
    scene.lab.agent_env[machine.name] = {"AGENT_HOME": str(home)}
    scene.lab.start(f"agent:{machine.name}")

    def back() -> None:
        """Once nothing of what it did there is needed: its logs are on that disk."""
        wait_for("the small disk is no longer needed", lambda: not scene.client.open_jobs(), 180, every=0.5)
        wait_for("all logs are closed", lambda: not scene.client.unclosed(), 60, every=0.5)
        scene.lab.agent_env.pop(machine.name)
        scene.lab.kill(f"agent:{machine.name}")
        scene.lab.start(f"agent:{machine.name}")

    return back


def disk_is_full(scene: Scene) -> None:
    machine = scene.lab.lan.machines[0]
    filler = f"{machine.folder}/small/filler"
    machine.run("sh", "-c", f"head -c {FULL_MIB * 2}M /dev/zero > {filler} 2>/dev/null || true")
    scene.rest(2, 15)
    machine.run("rm", "-f", filler)
    scene.rest(2, 4)
