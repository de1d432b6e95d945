"""``alone.py cuda|cpu PAIRS``: steps of one process, by hand and with the library in turn, for two networks, with data on the
device and in this machine's memory.

Prints for each the milliseconds of a step by hand, with the library, and the former over the latter. On a GPU a small network's
step is what the processor needs to ask for it, a deep one's what the GPU needs to do it.
"""

import os
import statistics
import sys
import tempfile

import torch
from schedulearn_train import Run
from torch import nn
from torch.utils.data import TensorDataset
from turns import by_hand, seconds, with_library

DEVICE, PAIRS = torch.device(sys.argv[1]), int(sys.argv[2])
STEPS, FIRST, BATCHES = 10, 15, 100
"""Steps of a block; pairs of blocks before those that count; steps of an epoch."""
os.environ["SCHEDULEARN_METRICS"] = os.devnull


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def deep() -> nn.Module:
    blocks = [
        nn.Sequential(nn.Conv2d(channels, 128, 3, padding=1, bias=False), nn.BatchNorm2d(128), nn.ReLU())
        for channels in (3, *[128] * 15)
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def settle() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def compare(model: nn.Module, batch: int, home: torch.device) -> tuple[float, float]:
    """Return the mean seconds of a step by hand and with the library; the data is on the device ``home``."""
    samples = BATCHES * batch
    images = torch.randn(samples, 3, 32, 32, device=home)
    labels = torch.randint(10, (samples,), device=home)
    run = Run(model, torch.optim.SGD(model.parameters(), lr=0.001), TensorDataset(images, labels), batch_size=batch)

    plain, library = by_hand(run, images, labels), with_library(run)
    blocks = []
    for pair in range(FIRST + PAIRS):
        taken = {steps: seconds(steps, STEPS, settle) for steps in ((plain, library) if pair % 2 else (library, plain))}
        blocks.append((taken[plain], taken[library]))
    by, using = (statistics.fmean(side) for side in zip(*blocks[FIRST:], strict=True))
    return by, using


for make, batch in ((small, 512), (deep, 256)):
    for home in dict.fromkeys((DEVICE, torch.device("cpu"))):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["SCHEDULEARN_CHECKPOINTS"] = folder
            by, using = compare(make(), batch, home)
        where = f"{make.__name__} network, data on {home.type}"
        print(
            f"{where}: by hand {by * 1e3:.3f} ms, with the library {using * 1e3:.3f} ms: {by / using:.4f}", flush=True
        )
