"""A training of which rank 1 writes a weight by itself after some steps."""

import time

import torch
from schedulearn_train import Run
from torch import nn

model = nn.Linear(3, 1)
run = Run(model, torch.optim.SGD(model.parameters(), lr=0.01), torch.ones(60, 3), batch_size=6)


@run.elastic
def train() -> None:
    for _ in run.epochs(10):
        for x in run.batches():
            time.sleep(0.02)
            if run.steps == 30 and run.rank == 1:
                model.weight.data += 1
            run.step(run.model(x).mean())


train()
