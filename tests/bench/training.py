"""``python -m tests.bench.training``: training under Schedulearn, against bare ``horovodrun`` of the same script.

A small network learns on two ranks, which both write a line every few steps. Both sides use the same image, processors,
memory and threads. On a machine with other load, half-minute runs differ by a tenth with nothing changed; so both
trainings run at once, and every few seconds the ranks of one are stopped (SIGSTOP) and those of the other continue. Then
neighbouring intervals are compared, by the clock of rank 0. Ours are bound to a processor each, like ranks in CPU slots,
which ``horovodrun`` does not do; then the bare ranks are bound too, which shows the cost of container, supervisor, log
capture and metrics. The cost of the portal and its agent for a running job would affect both sides: it is measured
separately, as processor time with and without a job.
"""

import argparse
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.rig import ENVIRONMENT, SLOTS, START_SECONDS, Rig, rig
from tests.bench.targets import Target, verdict
from tests.system.product import wait_for

PAIRS = 24
STRETCH_SECONDS = 4.0
MIN_RATIO, MAX_OVERHEAD_SHARE = 0.98, 0.02
EVERY = 10
"""The number of steps from one line to the next."""
SCRIPT = """
import sys, time

import horovod.torch as hvd
import torch
from torch import nn

every = int(sys.argv[1])
hvd.init()
torch.manual_seed(hvd.rank())
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(),
    nn.Linear(32 * 6 * 6, 128), nn.ReLU(), nn.Linear(128, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
images, labels = torch.randn(4096, 1, 28, 28), torch.randint(10, (4096,))
print(f"threads {torch.get_num_threads()}", flush=True)
step = 0
while True:
    step += 1
    chosen = torch.randint(len(images), (64,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
    loss.backward()
    optimizer.step()
    if step % every == 0:
        print(f"rank {hvd.rank()} step {step} loss {loss.item():.4f} at {time.time():.4f}", flush=True)
"""
STEP = re.compile(r"rank 0 step (\d+) loss \S+ at (\d+\.\d+)")
TICKS = os.sysconf("SC_CLK_TCK")


Stretch = tuple[float, float]
"""The start and the end of an interval, in Unix seconds."""


@dataclass(frozen=True)
class TrainingRanks:
    """One of the two trainings, with the process ids of its ranks on this machine."""

    ranks: Sequence[int]

    @classmethod
    def of(cls, container: Any) -> "TrainingRanks":
        rows = container.top(ps_args="-eo pid,args")["Processes"]
        return cls([int(pid) for pid, command in rows if command == f"python train.py {EVERY}"])

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def _signal(self, signum: int) -> None:
        for pid in self.ranks:
            os.kill(pid, signum)

    def bind(self) -> None:
        """Bind each rank with all its threads to a separate processor."""
        for pid, processor in zip(self.ranks, sorted(os.sched_getaffinity(0)), strict=False):
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), {processor})

    def run_interval(self) -> Stretch:
        """Continue for some time, then stop; return the interval."""
        begun = time.time()
        self.resume()
        time.sleep(STRETCH_SECONDS)
        self.stop()
        return begun, time.time()


def speed(log: str, begun: float, ended: float) -> float:
    """Return the steps per second of rank 0 within an interval, from its first line to its last."""
    lines = [(int(step), float(at)) for step, at in STEP.findall(log) if begun <= float(at) <= ended]
    assert len(lines) > 2, f"{len(lines)} lines in {ended - begun:.1f} s"
    return (lines[-1][0] - lines[0][0]) / (lines[-1][1] - lines[0][1])


def threads(log: str) -> int:
    found = re.search(r"threads (\d+)", log)
    assert found, log[-500:]
    return int(found[1])


@contextmanager
def bare_horovodrun(it: Rig, folder: Path, limits: Mapping[str, Any], threads: int) -> Iterator[Any]:
    """Start a container with a bare ``horovodrun``."""
    env = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1", "HOME": "/tmp"}
    command = ["horovodrun", "--gloo", "-np", str(SLOTS), "python", "train.py", str(EVERY)]
    options = {"working_dir": "/workspace", "volumes": {str(folder): {"bind": "/workspace", "mode": "ro"}}}
    # Its ranks use the loopback. Gloo resolves its own host name, which the engine configures only with a network.
    options |= {"network_mode": "none", "hostname": "bare", "extra_hosts": {"bare": "127.0.0.1"}}
    with it.container(command, environment=env, **options, **limits) as container:
        yield container


def busy_processors(pids: Sequence[int], seconds: float) -> float:
    """Return the average number of processors that these processes keep busy for the next ``seconds``."""

    def used() -> int:
        rows = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        return sum(int(row[11]) + int(row[12]) for row in rows)

    begun, before = time.monotonic(), used()
    time.sleep(seconds)
    return (used() - before) / TICKS / (time.monotonic() - begun)


def alternate(ours: TrainingRanks, theirs: TrainingRanks, pairs: int) -> list[tuple[Stretch, Stretch]]:
    """Return intervals of both alternately, each time starting with the one that ran last: (ours, theirs)."""
    found = []
    for number in range(pairs):
        if number % 2:
            beside = theirs.run_interval()
            found.append((ours.run_interval(), beside))
        else:
            found.append((ours.run_interval(), theirs.run_interval()))
    return found


def compare_speeds(floor: str, ours: str, theirs: str, stretches: Sequence[tuple[Stretch, Stretch]]) -> float:
    """Print and return the median ratio of our speed to that of the floor, from both logs."""
    pairs = [(speed(ours, *one), speed(theirs, *other)) for one, other in stretches]
    here, there = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = [one / other for one, other in pairs]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    print(f"training on {SLOTS} ranks: {here:.1f} steps/s; {floor}: {there:.1f} steps/s (medians)")
    print(f"ratio of neighbouring intervals: {ratio:.3f} (half of {len(ratios)} within {low:.3f} to {high:.3f})")
    return ratio


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.training", description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"of stretches ({PAIRS})")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    with rig() as it, tempfile.TemporaryDirectory(prefix="sl-train-") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "train.py").write_text(SCRIPT)
        beside = [process.pid for process in it.product.processes.values()]
        idle = busy_processors(beside, 4 * STRETCH_SECONDS)
        job = it.product.submit(
            it.product.upload("train", train=SCRIPT), "train.py", launcher="horovod", environment=ENVIRONMENT,
            min_gpus=SLOTS, max_gpus=SLOTS, arguments=[str(EVERY)],
        )  # fmt: skip

        def log() -> str:
            return str(it.product.log(job).decode())

        wait_for("the first steps", lambda: STEP.search(log()), START_SECONDS, every=0.5)
        ours, count = TrainingRanks.of(it.host(job)), threads(log())
        with_job = busy_processors(beside, 4 * STRETCH_SECONDS)
        ours.stop()
        with bare_horovodrun(it, Path(folder), it.limits(job), count) as container:
            wait_for("bare steps", lambda: STEP.search(container.logs().decode()), START_SECONDS, every=0.5)
            theirs = TrainingRanks.of(container)
            theirs.stop()
            assert len(ours.ranks) == len(theirs.ranks) == SLOTS
            stretches = alternate(ours, theirs, options.pairs)
            theirs.bind()
            bound = alternate(ours, theirs, options.pairs)
            text = container.logs().decode()
        assert threads(text) == count
        ours.resume()
        last = bound[-1][0][1]
        wait_for("its log", lambda: any(float(at) > last for _, at in STEP.findall(log())), 30)
        lines = log()
        it.product.post(f"jobs/{job}/cancel/")
    ratio = compare_speeds("bare horovodrun", lines, text, stretches)
    compare_speeds("bare horovodrun with bound ranks", lines, text, bound)
    print(f"portal, scheduler and agent beside it: {with_job:.1%} of a processor; without a job {idle:.1%}")
    return verdict(
        [
            Target("training over bare horovodrun", ratio, MIN_RATIO, at_least=True),
            Target(
                "what a job adds to portal and agent, of the processors", (with_job - idle) / SLOTS, MAX_OVERHEAD_SHARE
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
