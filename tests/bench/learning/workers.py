"""Four workers in containers of a job environment, each with its share of a processor, which may change as they train."""

import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker

from runners.launch.ranks import MALLOC_VARIABLES
from tests import engine

ROOT = Path(__file__).resolve().parents[3]
RANKS = 4
PERIOD_US = 10_000
"""The period of the kernel's accounting: short, so that a slow worker is slow in every step and not stopped in some."""
FULL_SHARE = 0.45
"""The share of a processor of a worker at full speed: all ranks together leave some of two processors to the machine."""
SLOW_FRACTION = 0.25
LOADS: Mapping[str, Sequence[float]] = {
    "equal": (1, 1, 1, 1),
    "one slow": (1, 1, 1, SLOW_FRACTION),
    "comes and goes": (1, 1, 1, 1),
}
TURN_SECONDS = 4.0
"""In the last one, the ranks after the first are slow in turn, each for so long."""
READY_SECONDS = 120
MAX_SECONDS = 240


class FailedError(Exception):
    """A run has ended without a result."""


class Workers:
    def __init__(self, folder: Path, containers: Sequence[Any]) -> None:
        self._folder, self._containers = folder, containers
        self._number = 0

    def set_shares(self, parts: Sequence[float]) -> None:
        """Set the share of each rank, as a fraction of that of a worker at full speed."""
        for container, part in zip(self._containers, parts, strict=False):
            container.update(cpu_period=PERIOD_US, cpu_quota=int(PERIOD_US * FULL_SHARE * part))

    def begin(self, options: Mapping[str, Any]) -> None:
        self._number += 1
        order = {"number": self._number, "port": _free_port(), "options": options}
        beside = self._folder / "order.new"
        beside.write_text(json.dumps(order))
        beside.rename(self._folder / "order.json")

    def wait(self) -> None:
        """Wait until all ranks but 0 are done; rank 0 measures losses after the training."""
        for rank in range(1, RANKS):
            self._result(rank)

    def results(self) -> dict[str, Any]:
        """Return the result of ``learn``, and for each rank the means of its steps after the first third."""
        self.set_shares([1 / FULL_SHARE])  # no other rank is busy
        return {**self._result(0), "ranks": self._ranks()}

    def _result(self, rank: int) -> dict[str, Any]:
        path, until = self._folder / f"result-{self._number}-{rank}.json", time.monotonic() + MAX_SECONDS
        while not path.exists():
            if time.monotonic() > until:
                raise FailedError(f"rank {rank} has no result after {MAX_SECONDS} s")
            time.sleep(0.05)
        found: dict[str, Any] = json.loads(path.read_text())
        if "error" in found:
            raise FailedError(f"rank {rank}: {found['error']}")
        return found

    def _ranks(self) -> dict[str, list[float]]:
        lines = (json.loads(line) for line in (self._folder / f"metrics-{self._number}").read_text().splitlines())
        reports = [line for line in lines if line["kind"] == "ranks"]
        reports = reports[len(reports) // 3 :]
        names = ("samples", "computing", "waiting", "error")
        return {
            name: [sum(line[name][rank] for line in reports) / len(reports) for rank in range(RANKS)]
            for name in names
            if reports
        }


def train(several: Sequence[Workers], load: str, orders: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Run trainings at the same time, so that other load of the machine affects all of them equally: each on separate
    workers, which share what one of them would have alone."""
    part = 1 / len(several)
    for some in several:
        some.set_shares([part * each for each in LOADS[load]])
    for some, options in zip(several, orders, strict=True):
        some.begin(options)
    over = threading.Event()
    turns = threading.Thread(target=_take_turns, args=(several, part, over), daemon=True)
    if load == "comes and goes":
        turns.start()
    try:
        for some in several:
            some.wait()
    finally:
        over.set()
        if turns.is_alive():
            turns.join()
    return [some.results() for some in several]


def _take_turns(several: Sequence[Workers], part: float, over: threading.Event) -> None:
    slow = 0
    while True:
        slow = slow % (RANKS - 1) + 1
        for some in several:
            some.set_shares([part * (SLOW_FRACTION if rank == slow else 1) for rank in range(RANKS)])
        if over.wait(TURN_SECONDS):
            return


@contextmanager
def workers(image: str) -> Iterator[Workers]:
    client = docker.from_env()
    with tempfile.TemporaryDirectory(prefix="sl-unequal-") as name:
        folder, made = Path(name), []
        folder.chmod(0o777)  # the user in a container is another one here
        volumes = {
            str(ROOT / "runners" / "training"): {"bind": "/library", "mode": "ro"},
            str(Path(__file__).parent / "job"): {"bind": "/bench", "mode": "ro"},
            name: {"bind": "/orders", "mode": "rw"},
        }
        env = {"PYTHONPATH": "/library:/bench", "OMP_NUM_THREADS": "1", "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
        env |= MALLOC_VARIABLES
        processors = sorted(os.sched_getaffinity(0))
        try:
            for rank in range(RANKS):
                command = ["python", "/bench/worker.py", str(rank), str(RANKS), "/orders"]
                # As on separate machines: otherwise three of them could share one processor.
                processor = str(processors[rank * len(processors) // RANKS])
                options: dict[str, Any] = {"environment": env, "volumes": volumes, "network_mode": "host"}
                options |= {"cpuset_cpus": processor}
                made.append(client.containers.run(image, command, detach=True, **options))
            until = time.monotonic() + READY_SECONDS
            while len(list(folder.glob("ready-*"))) < RANKS:
                if time.monotonic() > until or any(_has_ended(each) for each in made):
                    raise FailedError("\n".join(each.logs().decode()[-1000:] for each in made))
                time.sleep(0.2)
            yield Workers(folder, made)
        finally:
            for each in made:
                each.remove(force=True)


def _has_ended(container: Any) -> bool:
    container.reload()
    return bool(container.status == "exited")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def two_worker_groups() -> Iterator[tuple[Workers, Workers]]:
    """Yield workers for two trainings at once."""
    with engine.docker_engine():
        image = engine.job_environment_image()
        with workers(image) as some, workers(image) as others:
            yield some, others
