"""Two ranks, of which the last needs five times as long for a sample: how many samples each computed, and the loss then.

torchrun --nproc-per-node 2 throttled.py MODE
"""

import sys
import time

import torch
from schedulearn_train import Run
from torch import nn
from torch.utils.data import TensorDataset

SAMPLES, BATCH, EPOCHS, SECONDS = 320, 32, 8, 0.004
torch.manual_seed(0)
generator = torch.Generator().manual_seed(2)
inputs = torch.randn(SAMPLES, 8, generator=generator)
targets = inputs @ torch.randn(8, 1, generator=generator)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = Run(model, optimizer, TensorDataset(inputs, targets), batch_size=BATCH, mode=sys.argv[1])
slow = 5 if run.rank == run.size - 1 else 1
computed = 0


@run.elastic
def train() -> None:
    global computed
    for _ in run.epochs(EPOCHS):
        for x, y in run.batches():
            time.sleep(slow * SECONDS * len(x))
            computed += len(x)
            run.step(nn.functional.mse_loss(run.model(x), y, reduction="sum"))


train()
loss = float(nn.functional.mse_loss(model(inputs), targets))
print(f"computed {computed} samples, loss {loss:.3g}", flush=True)
