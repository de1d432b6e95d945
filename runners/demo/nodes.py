"""Nodes of a demo lab: real agents that use the real protocol, with simulated GPUs on which nothing runs.

A job without FAKE_RUN_SECONDS runs for some minutes, prints what a training prints, reports its curves and seems to use its
GPUs; now and then one fails. An agent that starts continues the jobs that it ran when it stopped.
"""

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from runners.agent.environment_keeper import FakeEnvironments
from runners.agent.journal import ContainerJournal
from runners.agent.machine import Machine
from runners.agent.portal_client import PortalClient
from runners.agent.program import Agent
from runners.agent.settings import NodeIdentity
from runners.demo.programs import (
    ENDINGS,
    SILENT_BEFORE_TRAINING,
    FailureKind,
    Training,
    first_lines,
    last_lines,
    output_files,
)
from runners.host.gpus import Gpu
from runners.host.node_files import NodeFiles
from runners.runtime import Folders
from runners.runtimes.fake import FakeContainer, FakeRuntime, append_output, read_json
from runners.spec import RunSpec

LINE_SECONDS = 6.0
METRIC_SECONDS = 12.0
MIN_SECONDS, MAX_SECONDS = 180, 1500
"""The range of running times of jobs without FAKE_RUN_SECONDS."""
DRIVER_LATER_SECONDS = 4.0
"""How long after its hosts a driver ends: the hosts are the ones that fail."""
FAILURE_SHARE = 0.1
FAILURE_KINDS: tuple[FailureKind, ...] = (
    "import_error",
    "file_not_found",
    "gpu_memory",
    "nan",
    "shapes",
    "host_memory",
)
EARLY_FAILURE_KINDS: tuple[FailureKind, ...] = ("import_error", "file_not_found", "shapes")
IDLE_EVERY = 11
"""One in so many jobs leaves its GPUs idle, so that the pages about idle GPUs have something to show."""
IDLE_CELSIUS, BUSY_CELSIUS = 34, 78
"""The temperature in degrees Celsius of an idle and of a fully used GPU."""
SIMULATED_RUN_FILE = "demo.json"


class GpuModel(NamedTuple):
    """A model of simulated GPUs."""

    name: str
    memory_mib: int

    def used_mib(self, wanted: int) -> int:
        """Return how much memory in MiB a program uses on it that would use ``wanted`` where there is enough."""
        return min(wanted, self.memory_mib * 23 // 25)


LARGE_GPU = GpuModel("Demo GPU 40 GB", 40_960)
SMALL_GPU = GpuModel("Demo GPU 24 GB", 24_576)
"""An older model."""


class JobProgress(NamedTuple):
    """The step that the earlier attempts of a resumable job reached, and the number of steps in all."""

    step: int
    steps: int


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A container's simulated program. Kept in the container's folder, so that another agent can continue it."""

    began_at: float
    """Seconds since the epoch."""
    ends_at: float
    training: Training
    mishap: FailureKind | None = None
    whole_seconds: float = 0.0
    """How long it would run if it did not fail; 0 if it runs for ``seconds``."""
    busy_percent: int = 74
    """The mean utilisation of its GPUs."""
    memory_mib: int = 8_192
    first_step: int = 0
    """The step at which it resumed."""

    @property
    def seconds(self) -> float:
        return max(1.0, self.ends_at - self.began_at)

    def step(self, seconds: float) -> int:
        """Return how many steps it has made ``seconds`` after its start."""
        part = seconds / max(1.0, self.whole_seconds or self.seconds)
        return self.first_step + round((self.training.steps - self.first_step) * min(1.0, max(0.0, part)))

    def write(self, folder: Path) -> None:
        (folder / SIMULATED_RUN_FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> "SimulatedRun | None":
        found = read_json(folder / SIMULATED_RUN_FILE)
        return cls(**{**found, "training": Training(**found["training"])}) if found else None

    @classmethod
    def draw(cls, spec: RunSpec, now: float, reached: JobProgress | None = None) -> "SimulatedRun":
        """Draw a run, the same for all containers of an attempt. With ``reached`` it resumes there, and succeeds."""
        chance = random.Random(spec.job)  # noqa: S311  # nothing secret depends on it
        seconds = float(dict(spec.env).get("FAKE_RUN_SECONDS") or chance.randint(MIN_SECONDS, MAX_SECONDS))
        mishap = chance.choice(FAILURE_KINDS) if chance.random() < FAILURE_SHARE else None
        training = Training.for_job(spec.job, seconds, max(1, spec.slots), diverges=mishap == "nan")
        whole = seconds
        if mishap is not None:
            seconds *= 0.1 if mishap in EARLY_FAILURE_KINDS else chance.uniform(0.2, 0.7)
        first_step = 0
        if reached is not None:
            mishap, first_step = None, reached.step
            training = replace(training, steps=max(reached.steps, first_step + 1), diverges=False)
            pace = training.mean_step_seconds(max(1, spec.slots))
            seconds = whole = min(MAX_SECONDS, max(MIN_SECONDS, pace * (training.steps - first_step)))
        later = DRIVER_LATER_SECONDS if spec.role == "driver" else 0.0
        busy, memory = 74 + 18 * (spec.job % 3 - 1), 8_192 + 1_024 * (spec.job % 28)
        if spec.job % IDLE_EVERY == 0:
            busy, memory = 0, 2_048
        return cls(now, now + seconds + later, training, mishap, whole, busy, memory, first_step)


class DemoRuntime(FakeRuntime):
    """A fake runtime whose containers seem to train."""

    def __init__(
        self,
        node: str,
        gpus: int,
        wall_clock: Callable[[], float] = time.time,
        reached: Callable[[int], JobProgress | None] = lambda job: None,
        models: Sequence[GpuModel] = (),
        **options: Any,
    ) -> None:
        """``models`` has the model of each GPU; without it all are of the large one."""
        super().__init__(**options)
        self.models = tuple(models) or (LARGE_GPU,) * gpus
        self.node = node
        self.reached = reached
        self.wall_clock = wall_clock
        self.uuids = tuple(f"demo-{node}-{index}" for index in range(gpus))
        self._printed_at: dict[str, float] = {}
        self._reported_at: dict[str, float] = {}
        self._simulated: dict[str, SimulatedRun] = {}

    def facts(self) -> dict[str, Any]:
        number = "".join(letter for letter in self.node if letter.isdigit()) or "1"
        return {
            **super().facts(),
            "cpus": 64,
            "memory_mib": 524_288,
            "shared": "demo",
            "ring_address": f"10.77.0.{int(number) % 250 + 1}",
        }

    def create(self, spec: RunSpec, folders: Folders) -> None:
        self._add_container(spec, folders, SimulatedRun.draw(spec, self.wall_clock(), self.reached(spec.job)))
        self.calls.append(("create", spec.name))

    def start(self, name: str) -> None:
        super().start(name)
        run, simulated = self.containers[name], self._simulated[name]
        simulated = replace(simulated, began_at=self.wall_clock(), ends_at=self.wall_clock() + simulated.seconds)
        self._simulated[name] = simulated
        simulated.write(run.folders.scribe.parent)

    def _write_first_lines(self, run: FakeContainer) -> None:
        scribe, simulated = run.folders.scribe, self._simulated[run.spec.name]
        if run.spec.role == "driver":
            ranks = _ranks(run)
            append_output(
                scribe, "setup", "set-up", f"The job now has {ranks} rank{'' if ranks == 1 else 's'}.\n".encode()
            )
            return
        command = " ".join(run.spec.command)
        append_output(scribe, "setup", "set-up", f"Code is unpacked in /workspace.\nStarting {command}\n".encode())
        if _is_first(run.spec) and simulated.mishap not in SILENT_BEFORE_TRAINING:
            seed = simulated.training.seed
            restored = f"Restored the checkpoint of step {simulated.first_step:,}.\n" if simulated.first_step else ""
            append_output(scribe, "0", "rank 0", (first_lines(1000 * (6 + seed % 90), seed) + restored).encode())

    def resume(self, files: NodeFiles) -> int:
        """Continue the containers that an earlier agent ran; return how many."""
        for name, entry in ContainerJournal(files).entries().items():
            described, simulated = read_json(files.control(name) / "job.json"), SimulatedRun.read(files.container(name))
            if entry.exit is None and entry.started and entry.running_at and described and simulated is not None:
                spec = RunSpec.from_json(described)
                run = self._add_container(spec, files.folders(spec), simulated)
                run.started_at = self.clock() - (self.wall_clock() - simulated.began_at)
                run.lease_at = self.clock()
        return len(self.containers)

    def _add_container(self, spec: RunSpec, folders: Folders, simulated: SimulatedRun) -> FakeContainer:
        ending = ENDINGS.get(simulated.mishap) if simulated.mishap else None
        env = {"FAKE_RUN_SECONDS": str(simulated.seconds)}
        if ending is not None and ending.exit_reason == "oom" and spec.role == "host":
            env["FAKE_OOM"] = "yes"
        elif ending is not None:
            env["FAKE_EXIT_CODE"] = str(ending.exit_code)
        self._simulated[spec.name] = simulated
        run = FakeContainer(replace(spec, env=tuple({**env, **dict(spec.env), **env}.items())), folders)
        return self.containers.setdefault(spec.name, run)

    def devices(self) -> list[Gpu]:
        """Return the GPUs as an agent reports them: busy where something runs."""
        busy = {uuid: run for run in list(self.containers.values()) if run.state == "running" for uuid in run.spec.gpus}
        return [self._device(index, uuid, busy.get(uuid)) for index, uuid in enumerate(self.uuids)]

    def _device(self, index: int, uuid: str, run: FakeContainer | None) -> Gpu:
        # Steady for a while and different from GPU to GPU; nothing secret depends on it.
        chance = random.Random(f"{uuid} {int(self.clock() / 20)}")  # noqa: S311
        percent, memory = 0, 450
        model = self.models[index]
        simulated = self._simulated.get(run.spec.name) if run is not None else None
        if simulated is not None:
            noise = chance.gauss(0, 5) if simulated.busy_percent else 0
            percent = min(100, max(0, round(simulated.busy_percent + noise)))
            memory = model.used_mib(simulated.memory_mib)
        heat = IDLE_CELSIUS + round((BUSY_CELSIUS - IDLE_CELSIUS) * percent / 100) + chance.randint(-1, 1)
        return Gpu(uuid, index, "cuda", model.name, model.memory_mib, True, None, percent, memory, heat)

    def _advance(self) -> None:
        super()._advance()
        now = self.clock()
        for name, run in list(self.containers.items()):
            if run.state != "running" or run.started_at is None or run.spec.role != "host":
                continue
            if now - self._printed_at.get(name, 0.0) >= LINE_SECONDS:
                self._printed_at[name] = now
                self._print(run, self._simulated[name].step(now - run.started_at))
            if _is_first(run.spec) and now - self._reported_at.get(name, 0.0) >= METRIC_SECONDS:
                self._reported_at[name] = now
                self._report(run, self._simulated[name].step(now - run.started_at))

    def _end(self, run: FakeContainer, code: int, reason: str, detail: str) -> None:
        simulated = self._simulated.get(run.spec.name)
        if reason == "exited" and simulated is not None and _is_first(run.spec):
            last = ENDINGS[simulated.mishap].text if simulated.mishap else last_lines(simulated.training)
            if not simulated.mishap:
                _write_outputs(run.folders.outputs, simulated.training)
            append_output(run.folders.scribe, "0", "rank 0", last.encode())
        super()._end(run, code, reason, detail)

    def _print(self, run: FakeContainer, step: int) -> None:
        simulated, first = self._simulated[run.spec.name], _is_first(run.spec)
        training = simulated.training
        if simulated.mishap in SILENT_BEFORE_TRAINING:
            return
        before = _ranks_before(run)
        for slot in range(run.spec.slots):
            rank = before + slot
            if slot == 0 and first:
                append_output(run.folders.scribe, "0", "rank 0", training.progress_line(step, _ranks(run)).encode())
            elif int(self.clock() / LINE_SECONDS) % 5 == rank % 5:
                known = read_json(run.folders.scribe / "log" / "streams.json").get(str(slot)) or {}
                label = str(known.get("label") or f"rank {rank}")
                append_output(run.folders.scribe, str(slot), label, training.waiting_line(step, rank).encode())

    def _report(self, run: FakeContainer, step: int) -> None:
        """Write the metrics that ``schedulearn_train`` would write for its steps."""
        simulated, ranks = self._simulated[run.spec.name], _ranks(run)
        training = simulated.training
        if simulated.mishap in SILENT_BEFORE_TRAINING:
            return
        about = {"at": self.wall_clock(), "step": step}
        facts: dict[str, float] = {
            "epoch": min(19, 20 * step // training.steps),
            "done": round(step / training.steps, 4),
            "ranks": ranks,
        }
        pace = {"batch": training.batch, "seconds": training.step_seconds(step, ranks), "loss": training.loss(step)}
        facts["total"] = training.steps * training.batch
        lines = [{"kind": "step", **about, **facts, **pace}]
        lines.append({"kind": "metric", **about, "name": "validation/accuracy", "value": training.accuracy(step)})
        append_output(
            run.folders.scribe, "metrics", "metrics", "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        )


def _write_outputs(folder: Path, training: Training) -> None:
    for path, content in output_files(training).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def _is_first(spec: RunSpec) -> bool:
    """Whether a container has rank 0: the first host, which comes after the driver where there is one."""
    return spec.role == "host" and spec.hostname == ("h1" if spec.launcher == "horovod" or spec.elastic else "h0")


def _hosts(run: FakeContainer) -> list[tuple[str, int]]:
    """Return the hosts of the whole attempt with their slots, as the portal sent them."""
    hosts = read_json(run.folders.control / "control.json").get("hosts") or []
    return [(str(host["name"]), int(host["slots"])) for host in hosts]


def _ranks(run: FakeContainer) -> int:
    return sum(slots for _, slots in _hosts(run)) or max(1, run.spec.slots)


def _ranks_before(run: FakeContainer) -> int:
    """Return how many ranks the hosts before this one have."""
    hosts = _hosts(run)
    names = [name for name, _ in hosts]
    place = names.index(run.spec.hostname) if run.spec.hostname in names else 0
    return sum(slots for _, slots in hosts[:place])


class DemoMachine(Machine):
    """This machine, except for its GPUs."""

    runtime: DemoRuntime

    def inventory(self) -> list[Gpu]:
        return self.runtime.devices()


class DemoAgent(Agent):
    """The agent of a node, unchanged."""

    runtime: DemoRuntime


def start_node(
    home: Path,
    url: str,
    identity: NodeIdentity,
    models: Sequence[GpuModel],
    reached: Callable[[int], JobProgress | None] = lambda job: None,
) -> DemoAgent:
    """Start an agent in threads of this process; ``stop()`` ends it.

    ``models`` has the model of each of its GPUs. ``reached`` returns the progress of a job by its number.
    """
    files = NodeFiles(home)
    files.make()
    identity.write(files.identity)
    runtime = DemoRuntime(identity.name, len(models), reached=reached, models=models, clock=time.monotonic)
    runtime.resume(files)
    portal = PortalClient(url, identity.token, allow_http=True)
    agent = DemoAgent(files, portal, runtime, FakeEnvironments(), DemoMachine(home, runtime, portal.url))
    agent.start()
    return agent
