"""A training whose steps take hardly longer with more samples, and whose gradients are noise for the most part. It goes on."""

import time

import torch
from schedulearn_train import AdaptiveBatch, Run
from torch import nn
from torch.utils.data import TensorDataset

SAMPLES = 4096
generator = torch.Generator().manual_seed(2)
inputs = torch.randn(SAMPLES, 8, generator=generator)
noise = 40 * torch.randn(SAMPLES, 1, generator=generator)
data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True) + noise)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
run = Run(model, optimizer, data, batch_size=AdaptiveBatch(16, minimum=16, maximum=256, lr_scaling="linear"))


@run.elastic
def train() -> None:
    batch = run.batch_size
    for _ in run.epochs(1000):
        for x, y in run.batches():
            time.sleep(0.05 + 0.0005 * len(x))
            run.step(nn.functional.mse_loss(run.model(x), y, reduction="sum"))
            if len(x) != batch:
                batch = len(x)
                print(f"batch {run.batch_size} at step {run.steps} {batch} samples", flush=True)


train()
