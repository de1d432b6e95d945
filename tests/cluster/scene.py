"""What a fault is, and what it finds: a busy lab, its judge, and a seed."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.clock import ShiftedClock
from tests.cluster.judge import Judge, RingAsked, Rules
from tests.cluster.lab import Lab
from tests.cluster.load import Client, Load
from tests.cluster.machines import Machine
from tests.system.product import wait_for


@dataclass
class Scene:
    lab: Lab
    judge: Judge
    client: Client
    rng: random.Random
    load: Load
    rings: list[RingAsked] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    """Bounds that were broken, as sentences."""
    clocks: dict[str, ShiftedClock] = field(default_factory=dict)
    """Those of programs whose wall clocks are set, while a fault is prepared that needs them."""

    def machine(self) -> Machine:
        return self.rng.choice(self.lab.lan.machines)

    def rest(self, least: float, most: float) -> None:
        time.sleep(self.rng.uniform(least, most))

    def within(self, seconds: float, what: str, look: Callable[[], object], since: float | None = None) -> None:
        """A bound of the fault matrix, from ``since`` (monotonic) or now on: one that is broken is noted, and waited for
        three times as long."""
        began = time.monotonic() if since is None else since
        wait_for(what, look, 3 * seconds + 10)
        if (took := time.monotonic() - began) > seconds:
            self.slow.append(f"{what} after {took:.1f} s, the bound is {seconds:g} s")

    def leads_again(self, epoch: int, since: float | None = None) -> None:
        """A scheduler has taken the lead after the one of ``epoch``: its first turn follows at once."""
        self.within(10, "a scheduler leads again", lambda: self.lab.postgres.epoch() > epoch, since)

    def is_missed(self, machine: Machine, since: float) -> None:
        """The portal shows that it has lost a node."""

        def offline() -> bool:
            rows = self.client.get("nodes/") or []
            return any(row["name"] == machine.name and not row["online"] for row in rows)

        self.within(20, f"the loss of {machine.name} is seen", offline, since)


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
    power: bool = False
    """It takes what a machine had in memory."""
    environment: str = "python"
    """What else its jobs need."""
    seconds: float = 12.0
    """About what an injection takes, until a run has measured it."""
    short: bool = False
    """Part of every test run, with few injections."""
