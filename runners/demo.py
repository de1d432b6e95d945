"""Nodes of a demo lab: real agents that speak the real protocol, with pretended GPUs on which nothing runs.

A job without FAKE_RUN_SECONDS of its own runs for some minutes, prints a line now and then, and seems to use its GPUs.
"""

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from runners.agent import Agent
from runners.agent_settings import Identity
from runners.environment_keeper import AllReady
from runners.fake_runtime import FakeRuntime, Pretended, say
from runners.gpus import Gpu
from runners.machine import Machine
from runners.nodefiles import NodeFiles
from runners.portal_client import PortalClient
from runners.runtime import Folders
from runners.spec import RunSpec

LINE_SECONDS = 6.0
SHORTEST, LONGEST = 120, 900
"""Seconds that a job runs which does not say how long."""
IDLE_EVERY = 7
"""Each so manieth job does nothing with its GPUs, so that one sees what is said of it."""
MODEL, MEMORY_MIB = "Pretended GPU", 40_960
COOL, HOT = 34, 78
"""Degrees Celsius at no and at full work."""


class DemoRuntime(FakeRuntime):
    """The fake runtime with work to look at."""

    def __init__(self, node: str, gpus: int, **options: Any) -> None:
        super().__init__(**options)
        self.node = node
        self.uuids = tuple(f"demo-{node}-{index}" for index in range(gpus))
        self._said_at: dict[str, float] = {}
        self._lines: dict[str, int] = {}

    def create(self, spec: RunSpec, folders: Folders) -> None:
        env = dict(spec.env)
        env.setdefault("FAKE_RUN_SECONDS", str(random.Random(spec.job).randint(SHORTEST, LONGEST)))  # noqa: S311
        super().create(replace(spec, env=tuple(env.items())), folders)

    def devices(self) -> list[Gpu]:
        """As an agent reports them: busy where something runs."""
        busy = {uuid: run for run in list(self.containers.values()) if run.state == "running" for uuid in run.spec.gpus}
        return [self._device(index, uuid, busy.get(uuid)) for index, uuid in enumerate(self.uuids)]

    def _device(self, index: int, uuid: str, run: Pretended | None) -> Gpu:
        # Steady for a while and different from GPU to GPU; nothing secret hangs on it.
        chance = random.Random(f"{uuid} {int(self.clock() / 20)}")  # noqa: S311
        percent, memory = 0, 450
        if run is not None and run.spec.job % IDLE_EVERY:
            percent = min(100, max(0, round(chance.gauss(70 + 25 * (run.spec.job % 3 - 1), 6))))
            memory = 8_192 + 1_024 * (run.spec.job % 28)
        elif run is not None:
            memory = 2_048
        heat = COOL + round((HOT - COOL) * percent / 100) + chance.randint(-1, 1)
        return Gpu(uuid, index, "cuda", MODEL, MEMORY_MIB, True, "", percent, memory, heat)

    def _pass_time(self) -> None:
        super()._pass_time()
        now = self.clock()
        for name, run in list(self.containers.items()):
            if run.state == "running" and now - self._said_at.get(name, 0.0) >= LINE_SECONDS:
                self._said_at[name] = now
                self._say_a_line(name, run)

    def _say_a_line(self, name: str, run: Pretended) -> None:
        step = self._lines[name] = self._lines.get(name, 0) + 1
        for rank in range(run.spec.slots):
            line = f"step {step:>4}  loss {2.3 * 0.97**step + 0.05:.4f}  accuracy {1 - 0.9 * 0.96**step:.3f}\n"
            say(run.folders.scribe, str(rank), f"rank {rank}", line.encode())


class DemoMachine(Machine):
    """This machine, but for where its GPUs come from."""

    runtime: DemoRuntime

    def inventory(self) -> list[Gpu]:
        return self.runtime.devices()


class DemoAgent(Agent):
    """The node's program as it is."""

    runtime: DemoRuntime


def start_node(home: Path, url: str, identity: Identity, gpus: int) -> DemoAgent:
    """An agent in threads of this process; ``stop()`` ends it."""
    files = NodeFiles(home)
    files.make()
    identity.write(files.identity)
    runtime = DemoRuntime(identity.name, gpus, clock=time.monotonic)
    portal = PortalClient(url, identity.token, allow_http=True)
    agent = DemoAgent(files, portal, runtime, AllReady(), DemoMachine(home, runtime, portal.url))
    agent.start()
    return agent
