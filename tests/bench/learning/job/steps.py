"""Two ranks of Horovod that only make steps: blocks by hand and blocks with the library, alternating.

Both run in one process, with one network and one optimizer of Horovod, so that nothing else differs: one start of a training
may be a tenth faster than the next here, for other reasons. Rank 0 prints ``pair <by hand> <with the library>``, in seconds
per step, and at the end ``reporting <fraction>``: the fraction of the time with the library that rank 0 needed to report
steps while the other one waited for it. It is too small to be visible in the pairs.
"""

import os
import time
from typing import Any

import horovod.torch as hvd
import torch
from schedulearn_train import Run
from torch import nn
from torch.utils.data import TensorDataset
from turns import by_hand, seconds, with_library

BATCH, SAMPLES = 512, 51_200
"""The batch and the samples of both ranks together: an epoch takes two seconds."""
STEPS, PAIRS, FIRST = 5, 400, 10
"""Steps of a block, which is short because the speed of the machine varies from second to second; pairs of blocks that
count, and pairs before.

Blocks differ by a fifth, so the ratio of their means is known to 1 % in each start.
"""

hvd.init()
processors = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {processors[hvd.local_rank() % len(processors)]})
torch.manual_seed(0)
images, labels = torch.randn(SAMPLES, 1, 28, 28), torch.randint(10, (SAMPLES,))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 6 * 6, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
run = Run(model, optimizer, TensorDataset(images, labels), batch_size=BATCH)


reporting = 0.0
report = run._coordinator._report


def timed(*facts: Any) -> None:
    global reporting
    begun = time.perf_counter()
    report(*facts)
    reporting += time.perf_counter() - begun


run._coordinator._report = timed


@run.elastic
def compare() -> None:
    taken = 0.0
    plain, library = by_hand(run, images, labels, hvd.rank(), hvd.size()), with_library(run)
    for pair in range(FIRST + PAIRS):
        blocks = {steps: seconds(steps, STEPS) for steps in ((plain, library) if pair % 2 else (library, plain))}
        taken += STEPS * blocks[library]
        if pair >= FIRST and hvd.rank() == 0:
            print(f"pair {blocks[plain]:.6f} {blocks[library]:.6f}", flush=True)
    if hvd.rank() == 0:
        print(f"reporting {reporting / taken:.8f}", flush=True)


compare()
