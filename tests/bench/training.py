"""``python -m tests.bench.training``: training under Schedulearn, beside bare ``horovodrun`` of the same script.

A small network learns on two ranks, which both write a line every few steps. Both sides use the same image, processors,
memory and threads, and take turns while the portal and its agent are there; what is measured is what container,
supervisor, log capture and metrics cost. Speed is that of rank 0 after its first steps, by its own clock.
"""

import argparse
import re
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.rig import ENVIRONMENT, SLOTS, START_SECONDS, Rig, rig
from tests.bench.targets import Target, verdict
from tests.system.product import wait_for

RUNS = 5
LEAST_RATIO = 0.98
STEPS, EVERY, FIRST = 2000, 20, 200
"""Steps of a run, from one line to the next, and before the clock starts."""
RUN_SECONDS = 280
SCRIPT = """
import sys, time

import horovod.torch as hvd
import torch
from torch import nn

steps, every = int(sys.argv[1]), int(sys.argv[2])
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
for step in range(1, steps + 1):
    chosen = torch.randint(len(images), (64,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
    loss.backward()
    optimizer.step()
    if step % every == 0:
        print(f"rank {hvd.rank()} step {step} loss {loss.item():.4f} at {time.time():.4f}", flush=True)
"""
STEP = re.compile(r"rank 0 step (\d+) loss \S+ at (\d+\.\d+)")


def speed(log: str) -> float:
    """Steps per second of rank 0, first steps left out."""
    said = {int(step): float(at) for step, at in STEP.findall(log)}
    begin, end = min(step for step in said if step >= FIRST), max(said)
    return (end - begin) / (said[end] - said[begin])


def threads(log: str) -> int:
    found = re.search(r"threads (\d+)", log)
    assert found, log[-500:]
    return int(found[1])


def ours(it: Rig, code: Mapping[str, int], steps: int) -> tuple[str, dict[str, Any]]:
    """The log of rank 0, and the limits of the ranks' container."""
    job = it.product.submit(
        dict(code), "train.py", launcher="horovod", environment=ENVIRONMENT, min_gpus=SLOTS, max_gpus=SLOTS,
        arguments=[str(steps), str(EVERY)],
    )  # fmt: skip
    wait_for("the first steps", lambda: STEP.search(it.product.log(job).decode()), START_SECONDS, every=0.5)
    limits = it.limits(job)
    it.product.wait_for_job(job, "SUCCEEDED", seconds=RUN_SECONDS)
    last = f"rank 0 step {steps} "
    return str(wait_for("its log", lambda: last in (text := it.product.log(job).decode()) and text, 30)), limits


def bare(it: Rig, folder: Path, steps: int, limits: Mapping[str, Any], threads: int) -> str:
    env = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1", "HOME": "/tmp"}
    command = ["horovodrun", "--gloo", "-np", str(SLOTS), "python", "train.py", str(steps), str(EVERY)]
    options = {"working_dir": "/workspace", "volumes": {str(folder): {"bind": "/workspace", "mode": "ro"}}}
    # Its ranks use the loopback. Gloo looks its own name up, which the engine writes down only where there is a network.
    options |= {"network_mode": "none", "hostname": "bare", "extra_hosts": {"bare": "127.0.0.1"}}
    with it.container(command, environment=env, **options, **limits) as container:
        code = container.wait(timeout=RUN_SECONDS)["StatusCode"]
        text = container.logs().decode()
    assert code == 0, text[-2000:]
    return text


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.training", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each side ({RUNS})")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of a run ({STEPS})")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    pairs = []
    with rig() as it, tempfile.TemporaryDirectory(prefix="sl-train-") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "train.py").write_text(SCRIPT)
        code = it.product.upload("train", train=SCRIPT)
        for _ in range(options.runs):
            log, limits = ours(it, code, options.steps)
            beside = bare(it, Path(folder), options.steps, limits, threads(log))
            assert threads(beside) == threads(log)
            pairs.append((speed(log), speed(beside)))
            print("training, steps/s: {:.1f}; bare horovodrun: {:.1f}".format(*pairs[-1]), flush=True)
    here, there = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"training on {SLOTS} ranks: {here:.1f} steps/s; bare horovodrun: {there:.1f} steps/s (medians)")
    ratio = statistics.median(one / other for one, other in pairs)
    return verdict([Target("training over bare horovodrun", ratio, LEAST_RATIO, least=True)])


if __name__ == "__main__":
    sys.exit(main())
