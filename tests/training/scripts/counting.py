"""A training that counts: each sample's weight falls by the same amount whenever it is used, and by nothing else.

So the model itself shows in the end how often each sample has counted, whatever ranks joined, left or were killed meanwhile.
A rank that is alone has not the memory for a batch, and needs two passes. Where ranks are in step it also normalises, for
which they wait for each other, and knows how many passes there were.

    python counting.py EPOCHS SECONDS [MODE]        with so many seconds for a step
"""

import os
import sys
import time
from pathlib import Path

import torch
from schedulearn_train import Checkpoints, Run
from torch import nn

SAMPLES, BATCH, MOST = 480, 12, 8
EPOCHS, STEP_SECONDS = int(sys.argv[1]), float(sys.argv[2])
MODE = sys.argv[3] if len(sys.argv) > 3 else "bsp"


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.zeros(SAMPLES))
        self.batches = nn.BatchNorm1d(1)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return -self.used[samples] * BATCH + 0 * self.batches(samples.float()[:, None])[:, 0]


model = Counter()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
together = MODE == "bsp"
run = Run(
    model,
    optimizer,
    range(SAMPLES),
    batch_size=BATCH,
    micro_batch_size=MOST,
    mode=MODE,
    checkpoints=Checkpoints(every_seconds=2),
    sync_batch_norm=together,
)


@run.elastic
def train() -> None:
    print(f"size {run.world.size} rank {run.world.rank} step {run.steps} pid {os.getpid()}", flush=True)
    for _ in run.epochs(EPOCHS):
        for samples in run.batches():
            time.sleep(STEP_SECONDS * len(samples) * run.size / BATCH)
            if run.step(run.model(samples).sum()) and run.rank == 0:
                print(f"step {run.steps} of {run.world.size} ranks", flush=True)


train()
wrong = int((model.used.round() != EPOCHS).sum())
print(f"done at step {run.steps}: {wrong} of {SAMPLES} samples were not used {EPOCHS} times", flush=True)
if together:
    print(f"normalised in {model.batches.num_batches_tracked} passes", flush=True)
Path(os.environ["SCHEDULEARN_OUTPUTS"], f"done-{run.world.rank}").touch()
