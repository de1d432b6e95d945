"""A training that counts, of which a part is frozen until an epoch that ranks which come later never see begin.

As in counting.py the model itself shows in the end how often each sample has counted in each of its two parts.

    python thawing.py EPOCHS SECONDS        with so many seconds for a step
"""

import sys
import time

import torch
from schedulearn_train import Run
from torch import nn

SAMPLES, BATCH, THAWS_AT = 120, 12, 2
EPOCHS, STEP_SECONDS = int(sys.argv[1]), float(sys.argv[2])


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Parameter(torch.zeros(SAMPLES))
        self.late = nn.Parameter(torch.zeros(SAMPLES), requires_grad=False)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return -(self.early[samples] + self.late[samples]) * BATCH


model = Counter()
run = Run(model, torch.optim.SGD(model.parameters(), lr=1.0), range(SAMPLES), batch_size=BATCH)


@run.elastic
def train() -> None:
    for epoch in run.epochs(EPOCHS):
        if epoch == THAWS_AT:
            model.late.requires_grad_(True)
        for samples in run.batches():
            time.sleep(STEP_SECONDS)
            run.step(run.model(samples).sum())
            print(f"step {run.steps} of {run.size} ranks, epoch {epoch}", flush=True)


train()
early = int((model.early.round() != EPOCHS).sum())
late = int((model.late.round() != EPOCHS - THAWS_AT).sum())
print(f"done: {early} and {late} of {SAMPLES} samples did not count as often as they should", flush=True)
