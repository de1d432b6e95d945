"""Steps by hand and with the library, for scripts that alternate blocks of them within one process."""

import itertools
import time
from collections.abc import Callable, Iterator

import torch
from schedulearn_train import Run, sync_points
from torch import nn

EPOCHS = 1_000_000
"""Trainings end when no more steps are requested."""
sync_points.SYNC_SECONDS *= 2  # half of the seconds are not the library's


def by_hand(run: Run, images: torch.Tensor, labels: torch.Tensor, rank: int = 0, ranks: int = 1) -> Iterator[None]:
    """Train like usual scripts: a permutation for each epoch, every rank its part of each batch. Yield after each step."""
    samples, part = len(images), run.batch_size // ranks
    device = next(run.model.parameters()).device
    for epoch in range(EPOCHS):
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(epoch)).to(images.device)
        for start in range(0, samples, run.batch_size):
            mine = order[start + rank * part : start + (rank + 1) * part]
            x, y = images[mine].to(device), labels[mine].to(device)
            run.optimizer.zero_grad()
            nn.functional.cross_entropy(run.model(x), y).backward()
            run.optimizer.step()
            yield


def with_library(run: Run) -> Iterator[None]:
    for _ in run.epochs(EPOCHS):
        for x, y in run.batches():
            run.step(nn.functional.cross_entropy(run.model(x), y, reduction="sum"))
            yield


def seconds(steps: Iterator[None], count: int, settle: Callable[[], None] = lambda: None) -> float:
    """Return the seconds per step of the next ``count``, until the device that ``settle`` waits for has done them."""
    settle()
    begun = time.perf_counter()
    for _ in itertools.islice(steps, count):
        pass
    settle()
    return (time.perf_counter() - begun) / count
