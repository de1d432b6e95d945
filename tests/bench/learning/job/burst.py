"""An elastic training on a simulated GPU: a step sleeps for the time that a GPU would need.

``python burst.py EPOCHS``. Everything else is real: ranks, communication, sums, batches, checkpoints.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from schedulearn_train import AdaptiveBatch, Run
from torch import nn
from torch.utils.data import TensorDataset

STEP_SECONDS, SAMPLE_SECONDS = 0.02, 0.001
"""Fixed cost of a step, and cost of a sample: the fixed cost is a quarter of a step with the batch asked for."""
SUM_SECONDS = 0.04
"""The time to sum gradients over more than one rank, for any batch size."""
BATCH, LARGEST = 64, 512
SAMPLES = 4096

torch.manual_seed(0)
inputs = torch.randn(SAMPLES, 8)
noise = 40 * torch.randn(SAMPLES, 1)
"""Gradients are mostly noise, so larger batches lose almost nothing."""
data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True) + noise)
model = nn.Linear(8, 1)


class Summing(torch.optim.SGD):
    """Waits as for the others' gradients, which is measured as such."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if run.size > 1:
            time.sleep(SUM_SECONDS)
        return super().step(closure)


optimizer = Summing(model.parameters(), lr=0.0001)
batch_size = AdaptiveBatch(BATCH, minimum=BATCH, maximum=LARGEST, lr_scaling="linear")
run = Run(model, optimizer, data, batch_size=batch_size)


@run.elastic
def train() -> None:
    for _ in run.epochs(int(sys.argv[1])):
        for x, y in run.batches():
            time.sleep(STEP_SECONDS + SAMPLE_SECONDS * len(x))
            run.step(nn.functional.mse_loss(run.model(x), y, reduction="sum"))


train()
