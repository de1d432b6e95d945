"""Faults of rings over several machines: the way between two of them is cut, or one of their ranks fails."""

import itertools
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from tests.cluster.judge import RingAsked
from tests.cluster.machines import Machine
from tests.cluster.people_faults import first_policy_again
from tests.cluster.scene import Scene
from tests.system.product import wait_for

ENVIRONMENT = "pytorch-horovod"
RANKS = 3
"""With two slots on each machine they are on two machines at least."""
GROWS = {"policy": "elastic_fifo", "params": {"grow_after_seconds": 0}}
START_SECONDS = 180
"""For ranks on a busy machine, which import torch, one node after the other."""
SHORT_SECONDS = 25.0
STALL_SECONDS = 120
"""Until the others are without a rank that hangs, in jobs that say they never wait long for each other."""
NOWHERE_SECONDS = 120
"""Until an attempt that cannot go on has ended: a lost node is noticed after 49 s, and its other parts have to stop."""
IN_STEP = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "50"}

Failure = Literal["exception", "kill", "hang", "stop", "exit"]
Breakage = Literal["drain", "cable", "power"]
FAILURES: tuple[tuple[bool, Failure], ...] = tuple(
    itertools.product((True, False), ("exception", "kill", "hang", "stop", "exit"))
)
"""Elastic or not, and how a rank fails."""


class Ring:
    """One job on three ranks, elastic or not, that counts steps until its file ``enough-<job>`` exists."""

    def __init__(self, scene: Scene, elastic: bool, failure: Failure | None = None, least: int | None = None) -> None:
        """``least``: its minimum, if it is not the usual one."""
        self.scene, self.elastic = scene, elastic
        text = (Path(__file__).parent / "ring_witness.py").read_text()
        code = scene.lab.upload(f"ring {scene.rng.getrandbits(40)}", train=text)
        arguments = ["--elastic"] if elastic else []
        arguments += ["--fail", failure, "--ranks", str(RANKS)] if failure else []
        least = least or (1 if elastic else RANKS)
        self.job = scene.lab.submit(
            code,
            "train.py",
            arguments=arguments,
            launcher="horovod",
            elastic=elastic,
            environment=ENVIRONMENT,
            env_vars=IN_STEP,
            min_gpus=least,
            max_gpus=RANKS,
        )
        self.asked = RingAsked(self.job)
        scene.rings.append(self.asked)

    def log(self) -> str:
        """Of all ranks of the last attempt, one after the other; nothing while the portal does not answer."""
        streams = self.scene.client.get(f"jobs/{self.job}/streams/") or []
        last = max((each["attempt"] for each in streams), default=0)
        ranks = [each for each in streams if each["attempt"] == last and each["label"].startswith("rank")]
        answers = [
            self.scene.client.ask("GET", f"jobs/{self.job}/log/", params={"stream": each["id"]}) for each in ranks
        ]
        return "\n".join(answer.text for answer in answers if answer is not None)

    def steps(self, words: str = "of") -> list[int]:
        return [int(step) for step in re.findall(rf"^step (\d+) {words}", self.log(), re.MULTILINE)]

    def last(self) -> int:
        return max(self.steps(), default=0)

    def comes_to(self, words: str, beyond: int = 0, seconds: float = START_SECONDS) -> None:
        wait_for(f"a step {words} beyond {beyond}", lambda: max(self.steps(words), default=0) > beyond, seconds, 0.5)

    def machines(self) -> tuple[Machine, list[Machine]]:
        """The driver's, and the others that have ranks."""
        found = {machine.name: self.names_on(machine) for machine in self.scene.lab.lan.machines}
        leads = next(name for name, parts in found.items() if any(part.endswith("-0") for part in parts))
        others = [name for name, parts in found.items() if parts and name != leads]
        return self.scene.lab.machine(leads), [self.scene.lab.machine(name) for name in others]

    def names_on(self, machine: Machine) -> list[str]:
        """Those of its containers that run on this machine."""
        asked = ("ps", "--filter", f"label=sl.job={self.job}", "--format", '{{.Label "sl.name"}}')
        return machine.docker(*asked).stdout.decode().split()

    def finish(self) -> None:
        for machine in self.scene.lab.lan.machines:
            (machine.folder / "data" / f"enough-{self.job}").touch()


def grows_at_once(scene: Scene) -> Callable[[], None]:
    back = first_policy_again(scene)
    wait_for("the policy changes", lambda: scene.lab.api("PUT", "policy/", json=GROWS).status_code == 200, 20)
    return back


def nodes_are_parted(scene: Scene) -> None:
    """Two machines of a ring do not hear each other, while both reach the portal; for a moment, or for longer.

    A moment changes nothing. Longer than that, an elastic ring goes on with fewer ranks, any other is run again.
    """
    elastic, short = scene.rng.random() < 0.5, scene.rng.random() < 0.5
    ring = Ring(scene, elastic)
    ring.comes_to(f"of {RANKS} ranks", 3)
    leads, others = ring.machines()
    apart = scene.rng.choice(others)
    before = ring.last()
    part(leads, apart, "-I")
    try:
        if short:
            scene.rest(5, SHORT_SECONDS)
        elif elastic:
            scene.within(120, "the ring goes on with fewer ranks", lambda: ring.steps(r"of [12] ranks"))
        else:
            scene.rest(45, 60)
    finally:
        part(leads, apart, "-D")
    if short:
        ring.comes_to(f"of {RANKS} ranks", before + 20, 90)
    else:
        ring.asked.again = not elastic
        ring.comes_to("of", 3 if not elastic else before)
    ring.finish()


def minimum_is_broken(scene: Scene) -> None:
    """An elastic ring needs all its ranks, on two machines; one of these is drained, cut off, or without power.

    Its attempt ends instead of holding the GPUs that are left, and its job runs again when there are enough. From a machine
    that is drained it may also move to others that have room, without an end.
    """
    ring = Ring(scene, elastic=True, least=RANKS)
    ring.asked.again = True
    ring.comes_to(f"of {RANKS} ranks", 3)
    leads, others = ring.machines()
    machine = scene.rng.choice([leads, *others])
    ways: tuple[Breakage, ...] = ("drain", "cable", "power")
    how = scene.rng.choice(ways)
    broken = time.monotonic()
    heal = broken_by(scene, machine, how)
    try:
        what = f"the first attempt of a ring ends, or has moved, after {how} of {machine.name}"
        scene.within(
            NOWHERE_SECONDS,
            what,
            lambda: ended(scene, ring.job) or (how == "drain" and not ring.names_on(machine)),
            broken,
        )
    finally:
        heal()
    ring.comes_to(f"of {RANKS} ranks", 3)
    ring.finish()


def ended(scene: Scene, job: int) -> bool:
    """Its first attempt."""
    attempts = scene.client.get(f"jobs/{job}/attempts/") or []
    return any(attempt["number"] == 1 and attempt["ended_at"] for attempt in attempts)


def broken_by(scene: Scene, machine: Machine, how: Breakage) -> Callable[[], None]:
    """What heals it is returned."""
    lab = scene.lab
    if how == "cable":
        machine.unplug()
        return machine.plug
    if how == "power":
        lab.agents.pop(machine.name)
        machine.power_off()

        def power_on() -> None:
            machine.power_on()
            lab.start(f"agent:{machine.name}")

        return power_on
    node = next(row["id"] for row in lab.get("nodes/") if row["name"] == machine.name)
    lab.api("POST", f"nodes/{node}/drain/").raise_for_status()
    return lambda: wait_for("the drain ends", lambda: lab.api("POST", f"nodes/{node}/resume/").status_code == 200, 20)


def part(one: Machine, other: Machine, how: Literal["-I", "-D"]) -> None:
    one.run("iptables", how, "INPUT", "-s", other.address, "-j", "DROP")
    one.run("iptables", how, "OUTPUT", "-d", other.address, "-j", "DROP")


def rank_fails(scene: Scene) -> None:
    """The last rank raises, is killed, hangs, is stopped, or ends as if all were done. Elastic rings go on without it, but
    not when it has ended well: the others' work is not done then, and the job must not pass for one that succeeded."""
    elastic, failure = FAILURES[len(scene.rings) % len(FAILURES)]
    ring = Ring(scene, elastic, failure)
    wait_for("the rank fails", lambda: f"fails now: {failure}" in ring.log(), START_SECONDS, 0.5)
    failed = time.monotonic()
    if elastic and failure != "exit":
        what = f"the ring goes on after {failure}"
        scene.within(STALL_SECONDS, what, lambda: goes_on(ring.log()), failed)
        ring.finish()
        return
    ring.asked.may_become = ("FAILED",)
    what = f"a {'elastic' if elastic else 'static'} ring ends after {failure}"
    scene.within(STALL_SECONDS, what, lambda: scene.lab.job_state(ring.job) == "FAILED", failed)


def goes_on(log: str) -> bool:
    """Fewer ranks have made steps after there were all of them, or all are there again and far beyond."""
    seen = re.findall(r"^step (\d+) of (\d+) ranks", log, re.MULTILINE)
    full = [int(step) for step, ranks in seen if int(ranks) == RANKS]
    return any(int(step) > min(full) + 10 for step, _ in seen) if full else False
