"""Carries faults out on a busy lab and has the judge say what came of it: one row of the table per fault."""

import itertools
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tests.cluster.judge import Judge, RingAsked, Rules, Run, judged, judged_rings
from tests.cluster.lab import SLOTS, Lab, lab_on
from tests.cluster.load import Client, Inspector, Load, wait_until_tidy
from tests.cluster.machines import cluster
from tests.cluster.scene import Fault, Scene
from tests.system.product import wait_for

DRAIN_SECONDS = 180
CENSUS_SECONDS = 60
STARVED_SECONDS = 1.0
"""Leases allow 4 s for an answer, so a machine that stands still for longer fences jobs by itself."""


@dataclass
class Row:
    fault: Fault
    seed: int
    injections: int = 0
    jobs: int = 0
    runs: int = 0
    restarted: int = 0
    complaints: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    seconds: float = 0.0
    starved: float = 0.0
    """Seconds that a thread of ours, ready to run, had to wait at most: how busy the machine was with other work."""

    def text(self) -> str:
        outcome = "as it must be" if not self.complaints else f"{len(self.complaints)} COMPLAINTS"
        late = f", {len(self.slow)} late" if self.slow else ""
        late += f" (starved for {self.starved:.1f} s)" if self.starved > STARVED_SECONDS else ""
        return (
            f"{self.fault.key:5} {self.fault.title:48} {self.injections:4} {self.jobs:5} {self.restarted:5} "
            f"{self.seconds:6.0f} s  {outcome}{late}"
        )


@dataclass
class Stage:
    lab: Lab
    judge: Judge


@contextmanager
def stage(machines: int, environments: Sequence[str] = ("python",)) -> Iterator[Stage]:
    with ExitStack() as stack:
        lan = stack.enter_context(cluster(machines, environments))
        judge = Judge(lan.machines, SLOTS)  # before the agents: jobs see its folders
        stack.callback(judge.close)
        yield Stage(stack.enter_context(lab_on(lan, environments)), judge)


def in_turn(faults: Sequence[Fault]) -> Fault:
    """One fault that is each of these in turn: a busy minute in place of one minute for each."""
    queue = itertools.cycle(faults)

    def inject(scene: Scene) -> None:
        fault = next(queue)
        began = time.monotonic()
        fault.inject(scene)
        print(f"{fault.key} {fault.title}: {time.monotonic() - began:.1f} s", flush=True)

    calm, power = all(fault.rules.calm for fault in faults), any(fault.power for fault in faults)
    return Fault("all", "one after the other", inject, Rules(calm=calm), times=len(faults), power=power)


class Breath(threading.Thread):
    """Sleeps a little, again and again, and remembers the worst awakening."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.worst = 0.0

    def run(self) -> None:
        while not self.over.is_set():
            began = time.monotonic()
            time.sleep(0.05)
            self.worst = max(self.worst, time.monotonic() - began - 0.05)


def carry_out(on: Stage, fault: Fault, seed: int, times: int) -> Row:
    """``times`` injections under load, then the end of all jobs, the judgement, and a census of the GPUs."""
    breath = Breath()
    breath.start()
    row = _carry_out(on, fault, seed, times)
    breath.over.set()
    row.starved = breath.worst
    return row


def _carry_out(on: Stage, fault: Fault, seed: int, times: int) -> Row:
    row, began = Row(fault, seed), time.monotonic()
    client = Client(on.lab, seed)
    before = len(on.judge.seen())
    load = Load(Client(on.lab, seed + 1, client), fault.pace_seconds, fault.longest_seconds)
    scene = Scene(on.lab, on.judge, client, random.Random(seed), load)
    back = fault.prepare(scene) if fault.prepare else None
    inspector = Inspector(client, on.judge.living_ranks)
    inspector.start()
    load.start()
    try:
        for _ in range(times):
            scene.rest(0.5, 3)
            fault.inject(scene)
            row.injections += 1
    except Exception as error:  # noqa: BLE001  one fault that could not be carried out must not hide the others
        row.complaints.append(f"not carried out: {error!r}")
    load.end()
    try:
        if back is not None:
            back()
    except Exception as error:  # noqa: BLE001
        row.complaints.append(f"not repaired: {error!r}")
    finals = client.finals(DRAIN_SECONDS)
    rings = client.finals(DRAIN_SECONDS, {ring.job for ring in scene.rings})
    try:
        wait_for("the last process ends", lambda: not on.judge.living(), 60)
        wait_for("all logs are closed", lambda: not client.unclosed(), 60, every=0.5)
    except AssertionError as error:
        row.complaints.append(f"{error}: {[run.job for run in on.judge.living()]} {client.unclosed()}")
    row.complaints += inspector.end()
    runs = on.judge.seen()[before:]
    lost = [machine.name for machine in on.lab.lan.machines] if fault.power else []
    row.complaints += judged(client.asked, runs, finals, client.logs(), fault.rules, lost)
    row.complaints += judged_rings(scene.rings, on.judge.seen_ranks(), rings)
    if row.complaints:
        print(*client.causes({*finals, *rings}), sep="\n", flush=True)
    row.complaints += [load.trouble] if load.trouble else []
    client.cancel_open(finals | rings)
    row.jobs, row.runs = len(client.asked) + len(scene.rings), len(runs)
    row.restarted = len(runs) - len({run.job for run in runs}) + again(scene.rings, on.judge.seen_ranks())
    row.complaints += census(on, seed)
    if left := wait_until_tidy(on.lab):
        row.complaints.append(left)
    row.slow, row.seconds = scene.slow, time.monotonic() - began
    return row


def again(rings: Sequence[RingAsked], ranks: Sequence[Run]) -> int:
    """How often rings were run after the first time."""
    attempts = {(rank.job, rank.number) for rank in ranks if rank.job in {ring.job for ring in rings}}
    return len(attempts) - len({job for job, _ in attempts})


def census(on: Stage, seed: int) -> list[str]:
    """As many jobs as there are GPUs, all at once: one that finds no place shows a GPU that leaked."""
    client = Client(on.lab, seed + 2)
    asked = [client.submit(0, extra="--wait") for _ in range(SLOTS * len(on.lab.lan.machines))]
    jobs = {each.job for each in asked}
    complaints: list[str] = []
    try:
        wait_for("a job on every GPU", lambda: jobs <= {run.job for run in on.judge.living()}, CENSUS_SECONDS)
    except AssertionError:
        found = len(jobs & {run.job for run in on.judge.living()})
        complaints.append(f"a GPU has leaked: of {len(jobs)} only {found} can be used")
    for each in asked:
        on.judge.release([each.job or 0])
    finals = client.finals(DRAIN_SECONDS)
    if complaints:
        return complaints
    return [f"census: job {job} is {state}" for job, state in finals.items() if state != "SUCCEEDED"]
