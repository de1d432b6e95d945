"""A training whose collectives' threads get a processor only while nothing else on it wants one, from its last moment on.

What they still have to do then, they do while the process ends.
"""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from schedulearn_train import Run
from torch import nn
from torch.utils.data import TensorDataset

RANK = int(os.environ["RANK"])
PROCESSORS = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {PROCESSORS[RANK % len(PROCESSORS)]})
torch.set_num_threads(1)
together = dist.barrier


def barrier(*args: Any) -> None:
    for place in Path("/proc/self/task").glob("*"):
        if (place / "comm").read_text().strip() == "pt_gloo_runloop":
            os.sched_setscheduler(int(place.name), os.SCHED_IDLE, os.sched_param(0))
    together(*args)


dist.barrier = barrier
model = nn.Linear(3, 1)
data = TensorDataset(torch.randn(96, 3), torch.randn(96, 1))
run = Run(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch=12)


@run.elastic
def train() -> None:
    for _ in run.epochs(1):
        for x, y in run.batches():
            run.step(nn.functional.mse_loss(run.model(x), y, reduction="sum"))


train()
