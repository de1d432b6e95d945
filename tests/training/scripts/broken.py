"""A training with a parameter server of two shards, of which the one on rank 1 breaks off."""

from typing import Any

import torch
from schedulearn_train import Run, SyncMode
from schedulearn_train.world import find_world
from torch import nn
from torch.utils.data import TensorDataset


class Breaks(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        if find_world().rank == 1:
            raise ValueError("this optimiser cannot")
        return super().step(closure)


data = TensorDataset(torch.randn(64, 6), torch.randn(64, 1))
model = nn.Linear(6, 1)
run = Run(model, Breaks(model.parameters(), lr=0.1), data, batch_size=12, mode=SyncMode("asp", shards=2))


@run.elastic
def train() -> None:
    for _ in run.epochs(3):
        for x, y in run.batches():
            run.step(nn.functional.mse_loss(run.model(x), y, reduction="sum"))


train()
