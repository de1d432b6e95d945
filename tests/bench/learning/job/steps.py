"""Two ranks of Horovod that do nothing but steps: ``plain`` or with the ``library``. Rank 0 prints how many in a second.

The first seconds are left out; of the stretches after them the median counts.
"""

import json
import statistics
import sys
import time
from itertools import pairwise

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import TensorDataset

BATCH, SAMPLES, EPOCHS = 128, 12_800, 22
"""Of both ranks together."""
STRETCH, FIRST = 50, 6
"""Steps of a stretch, and stretches that do not count."""

hvd.init()
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(),
    nn.Linear(32 * 6 * 6, 128), nn.ReLU(), nn.Linear(128, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
images, labels = torch.randn(SAMPLES, 1, 28, 28), torch.randint(10, (SAMPLES,))
marks: list[float] = []


def plain() -> None:
    """As one writes it by hand: a permutation for each epoch, every rank its part of each batch, sums over all of it."""
    together = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    part = BATCH // hvd.size()
    for epoch in range(EPOCHS):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        for start in range(0, SAMPLES, BATCH):
            mine = order[start + hvd.rank() * part : start + (hvd.rank() + 1) * part]
            together.zero_grad()
            nn.functional.cross_entropy(model(images[mine]), labels[mine]).backward()
            together.step()
            mark()


def with_library() -> None:
    from schedulearn_train import Run

    run = Run(model, optimizer, TensorDataset(images, labels), batch=BATCH)

    @run.elastic
    def train() -> None:
        for _ in run.epochs(EPOCHS):
            for x, y in run.batches():
                run.step(nn.functional.cross_entropy(run.model(x), y, reduction="sum"))
                mark()

    train()


count = 0


def mark() -> None:
    global count
    count += 1
    if count % STRETCH == 0:
        marks.append(time.perf_counter())


plain() if sys.argv[1] == "plain" else with_library()
if hvd.rank() == 0:
    stretches = [STRETCH / (after - before) for before, after in pairwise(marks[FIRST:])]
    print(json.dumps({"steps_per_second": statistics.median(stretches)}), flush=True)
