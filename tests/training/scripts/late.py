"""A training whose collectives' threads wait for Python's lock, to let go of a tensor, until Python ends."""

import sys
import time

import torch
import torch.distributed as dist
from schedulearn_train import Run
from torch import nn
from torch.utils.data import TensorDataset

destroy = dist.destroy_process_group
kept: list[dist.ProcessGroup] = []  # as DistributedDataParallel keeps groups


def destroy_process_group() -> None:
    """The last that the library asks of torch. A thread has something to do meanwhile, and then does not get the lock."""
    kept.extend(dist.new_group([rank]) for rank in range(dist.get_world_size()))
    sys.setswitchinterval(60)
    dist.all_gather([torch.empty(50_000_000)], torch.zeros(50_000_000), group=kept[dist.get_rank()], async_op=True)
    destroy()
    until = time.monotonic() + 1
    while time.monotonic() < until:
        pass


dist.destroy_process_group = destroy_process_group
torch.manual_seed(3)
model = nn.Linear(3, 1)
data = TensorDataset(torch.randn(96, 3), torch.randn(96, 1))
run = Run(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=12)


@run.elastic
def train() -> None:
    for _ in run.epochs(1):
        for x, y in run.batches():
            run.step(nn.functional.mse_loss(run.model(x), y, reduction="sum"))


train()
