"""Reads this machine: its facts, installed packages, GPUs, and what is unfit about it."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runners.agent import shared_folders
from runners.agent.settings import MachineFindings, machine_facts
from runners.environments.preparing import cache_home
from runners.host import checks, gpus
from runners.host.disks import Disk, find_disks
from runners.host.facts import network_facts, nvidia_facts, package_facts
from runners.host.gpu_watch import GpuWatch
from runners.host.gpus import Gpu
from runners.host.node_files import NodeFiles
from runners.messages import Message
from runners.messages.containers import GpuInUse
from runners.messages.problems import Problem
from runners.runtime import ContainerRuntime, RunError

LAYER_FORMAT = 1
"""The fact by which the portal knows that this agent gets environments with a recipe."""
IMAGE_FORMAT = 1
"""The fact by which the portal knows that this agent gets images of projects: it has a Docker Engine."""
CLOCK_STEP_SECONDS = 0.5
"""The precision of the clock's offset; smaller changes would only make each report differ."""


class Machine:
    """The state of this machine for its agent's reports. ``home`` is where the agent keeps its files."""

    def __init__(
        self,
        home: Path,
        runtime: ContainerRuntime,
        url: str = "",
        overlay_address: str = "",
        files: NodeFiles | None = None,
        keeps_caches: bool = True,
    ) -> None:
        self.home = home
        self.files = files or NodeFiles(home)
        self.runtime = runtime
        self.url = url
        self.overlay_address = overlay_address
        self.keeps_caches = keeps_caches
        """Whether jobs get the caches of their projects."""
        self._lock = threading.Lock()
        self._facts: dict[str, Any] = {}
        self._gpus: tuple[Gpu, ...] = ()
        self._problems: tuple[Problem, ...] = ()
        self._offset: float | None = None
        self._engine_folder = ""
        self._watch = GpuWatch()
        self._more_facts: list[Callable[[], dict[str, Any]]] = []

    def add_facts(self, read: Callable[[], dict[str, Any]]) -> None:
        """Report what this function returns, too."""
        self._more_facts.append(read)

    def facts(self) -> dict[str, Any]:
        with self._lock:
            clock = {} if self._offset is None else {"clock_offset_seconds": self._offset}
            return {**self._facts, **clock}

    def gpus(self) -> list[dict[str, Any]]:
        with self._lock:
            return [gpu.to_json() for gpu in self._gpus]

    def problems(self) -> list[dict[str, Any]]:
        with self._lock:
            clock = checks.clock_problem(self._offset)
            return [problem.to_json() for problem in (*self._problems, *([clock] if clock else []))]

    def inventory(self) -> list[Gpu]:
        return self._watch.inventory(self.runtime.is_ours)

    def refresh_gpus(self) -> None:
        devices = tuple(self.inventory())
        with self._lock:
            self._gpus = devices

    def gather(self) -> None:
        """Read all facts and problems. The engine comes last, because it may not answer for a while."""
        self.refresh_gpus()
        facts = {
            **machine_facts(self.home),
            **package_facts(),
            **network_facts(self.url, self.overlay_address),
            **nvidia_facts(),
        }
        facts |= shared_folders.facts(self.files) | {
            "layer_format": LAYER_FORMAT,
            "allowed_hosts": True,
            "job_inputs": True,
            "job_secrets": True,
        }
        facts["project_caches"] = self.keeps_caches
        if self.runtime.kind == "docker":
            facts["image_format"] = IMAGE_FORMAT
        for read in self._more_facts:
            facts |= read()
        disks = self._disks()
        facts["disks"] = [disk.to_json() for disk in disks]
        with self._lock:
            self._facts = {**self._facts, **facts}
        problems = (*self.runtime.check(), *self._local_problems(disks))
        with self._lock:
            self._problems = problems
        try:
            engine = self.runtime.facts()
        except RunError:
            return  # check() has reported why
        with self._lock:
            self._facts = {**facts, **engine}
        self._engine_folder = str(engine.get("engine_folder") or "")  # its disk counts from the next time

    def _disks(self) -> list[Disk]:
        engine = {"engine": Path(self._engine_folder)} if self._engine_folder else {}
        return find_disks({"agent": self.home, "cache": cache_home(), **engine})

    def _local_problems(self, disks: list[Disk]) -> list[Problem]:
        found = (gpus.driver_problem(), *(disk.problem for disk in disks))
        return [problem for problem in found if problem is not None]

    def update_clock(self, reply: Mapping[str, Any], sent_at: float, now: float | None = None) -> None:
        """Update how far this clock is ahead of the portal's, whose time lies between the request and the reply."""
        portal_now = reply.get("now")
        if isinstance(portal_now, bool) or not isinstance(portal_now, int | float):
            return
        now = time.time() if now is None else now
        took = max(0.0, time.monotonic() - sent_at)
        offset = round(now - took / 2 - portal_now, 1)
        with self._lock:
            if self._offset is None or abs(offset - self._offset) >= CLOCK_STEP_SECONDS:
                self._offset = offset

    def gpu_conflict(self, uuids: tuple[str, ...]) -> Message | None:
        """Return why nothing should start on these GPUs: one is in use outside the portal. Asks the driver again."""
        for gpu in self.inventory():
            if gpu.uuid in uuids and gpu.outside:
                return GpuInUse(gpu.index, gpu.outside)
        return None


def inspect_machine(home: Path, runtime: str, url: str, overlay_address: str) -> MachineFindings:
    """Read a machine before it is a node."""
    from runners.runtimes import confinement_check
    from runners.runtimes.fake import FakeRuntime
    from runners.runtimes.process import ProcessRuntime

    made: ContainerRuntime
    if runtime == "docker":
        from runners.runtimes.docker import DockerRuntime

        made = DockerRuntime("enrolment", "0", lambda key: None, close_firewall=False)
    elif runtime == "process":
        made = ProcessRuntime(
            "enrolment", "0", home / "processes", lambda key: None, confinement_check.find_confinement
        )
    else:
        made = FakeRuntime()
    machine = Machine(home, made, url, overlay_address)
    machine.gather()
    listed = [f"{gpu.model} ({gpu.memory_mib // 1024} GiB)" for gpu in machine._gpus if gpu.kind == "cuda"]
    return MachineFindings({**machine.facts(), "gpus": listed}, machine._problems)
