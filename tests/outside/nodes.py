"""Nodes of four pretended GPUs each: real agents, which join by the real protocol, over the fake runtime.

``python -m tests.outside.nodes URL FOLDER NAME=JOIN_TOKEN ...`` runs the agents of all nodes until SIGTERM. A job's
variables set how long it runs and how it ends (``runners.runtimes.fake``). While it runs, it reports its steps as a training
does.
"""

import json
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

from runners.agent.environment_keeper import FakeEnvironments
from runners.agent.machine import Machine
from runners.agent.portal_client import PortalClient
from runners.agent.program import Agent
from runners.agent.settings import NodeIdentity
from runners.host.gpus import Gpu
from runners.host.node_files import NodeFiles
from runners.runtimes.fake import FakeContainer, FakeRuntime, append_output, write_json
from runners.spec import RunSpec

GPUS = 4
STEP_SECONDS = 2.0


class Trainings:
    """What the containers of one attempt know of each other, on whatever nodes they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[int, float] = {}
        self._hosts: defaultdict[int, dict[str, RunSpec]] = defaultdict(dict)

    def begin(self, run: FakeContainer, now: float) -> None:
        """All hosts end when the first would by itself, however late the others came."""
        with self._lock:
            self._ends.setdefault(run.spec.attempt, now + run.run_seconds)
            if run.spec.role == "host":
                self._hosts[run.spec.attempt][run.spec.name] = run.spec

    def leave(self, run: FakeContainer) -> None:
        with self._lock:
            self._hosts[run.spec.attempt].pop(run.spec.name, None)

    def is_over(self, run: FakeContainer, now: float) -> bool:
        """A driver ends once its hosts have."""
        with self._lock:
            if now < self._ends[run.spec.attempt]:
                return False
            return run.spec.role == "host" or not self._hosts[run.spec.attempt]

    def ranks(self, run: FakeContainer) -> list[str]:
        """The host of each rank."""
        with self._lock:
            hosts = sorted(self._hosts[run.spec.attempt].values(), key=lambda spec: int(spec.hostname[1:]))
            return [spec.hostname for spec in hosts for _ in range(spec.slots)]


class PretendedNode(FakeRuntime):
    def __init__(self, number: int, name: str, trainings: Trainings) -> None:
        super().__init__()
        self.number, self.name, self.trainings = number, name, trainings
        self._reported_at: dict[str, float] = {}
        self._begun: set[str] = set()
        self._rings: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)

    def facts(self) -> dict[str, Any]:
        return {
            **super().facts(),
            "cpus": 64,
            "memory_mib": 262_144,
            "ring_address": f"10.77.0.{self.number}",
        }

    def devices(self) -> list[Gpu]:
        return [
            Gpu(f"outside-{self.name}-{index}", index, "cuda", "Pretended GPU", 40_960, True, None, 50, 8_192, 50)
            for index in range(GPUS)
        ]

    def _write_first_lines(self, run: FakeContainer) -> None:
        super()._write_first_lines(run)
        self.trainings.begin(run, self.clock())
        self._begun.add(run.spec.name)

    def _advance(self) -> None:
        super()._advance()
        now = self.clock()
        for name, run in tuple(self.containers.items()):
            if run.state != "running" or name not in self._begun:
                continue
            if self.trainings.is_over(run, now):
                self._end(run, int(run.setting("FAKE_EXIT_CODE", "0")), "exited", "")
            elif run.spec.role == "driver":
                self._form_ring(run)
            elif now - self._reported_at.get(name, 0.0) >= STEP_SECONDS:
                self._reported_at[name] = now
                self._report(run, now)

    def _form_ring(self, run: FakeContainer) -> None:
        """Report, as a driver does, with which hosts it continues."""
        rings, ranks = self._rings[run.spec.name], self.trainings.ranks(run)
        if ranks and (not rings or rings[-1]["hosts"] != ranks):
            cost = 0.5 if rings else None
            rings.append({"number": len(rings) + 1, "at": time.time(), "hosts": ranks, "cost_seconds": cost})
            status = {"phase": "running", "ranks": len(ranks), "rings": rings}
            write_json(run.folders.scribe / "status.json", status)

    def _report(self, run: FakeContainer, now: float) -> None:
        assert run.started_at is not None
        step = {"kind": "step", "at": time.time(), "step": int(10 * (now - run.started_at)), "ranks": run.spec.slots}
        line = json.dumps({**step, "epoch": 0, "batch": 32, "seconds": 0.1, "loss": 1.0})
        append_output(run.folders.scribe, "metrics", "metrics", f"{line}\n".encode())

    def _end(self, run: FakeContainer, code: int, reason: str, detail: str) -> None:
        super()._end(run, code, reason, detail)
        self.trainings.leave(run)

    def signal(self, name: str, signum: int) -> None:
        super().signal(name, signum)
        if (run := self.containers.get(name)) is not None and run.state == "exited":
            self.trainings.leave(run)


class PretendedMachine(Machine):
    runtime: PretendedNode

    def inventory(self) -> list[Gpu]:
        return self.runtime.devices()


def start(number: int, name: str, url: str, home: Path, join_token: str, trainings: Trainings) -> Agent:
    files = NodeFiles(home)
    files.make()
    joining = PortalClient(url, allow_http=True)
    node, token = joining.join(join_token, name, "fake", {"hostname": name, "cpus": 64, "memory_mib": 262_144})
    joining.close()
    NodeIdentity(node, token, url, name, "fake", uuid.uuid4().hex).write(files.identity)
    runtime = PretendedNode(number, name, trainings)
    portal = PortalClient(url, token, allow_http=True)
    agent = Agent(files, portal, runtime, FakeEnvironments(), PretendedMachine(home, runtime, portal.url))
    agent.start()
    return agent


def main(url: str, folder: str, *nodes: str) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    ending = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: ending.set())
    trainings = Trainings()
    agents = []
    for number, given in enumerate(nodes, start=1):
        name, _, token = given.partition("=")
        agents.append(start(number, name, url, Path(folder) / name, token, trainings))
    ending.wait()
    os._exit(0)  # nothing of the agents is looked at afterwards, and to stop them one by one takes a minute


if __name__ == "__main__":
    main(*sys.argv[1:])
