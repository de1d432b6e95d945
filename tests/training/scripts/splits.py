"""Random unequal parts of batches on several ranks, against a loop by hand with the whole of each: prints the largest difference.
And the noise of gradients that was measured, as a part of what it is.

Losses that are means or sums, momentum, weight decay, clipping, batch normalisation, a gradient scaler that meets an infinite loss on one rank, and a last
batch that is short or a single sample interact; some ranks have nothing of some batches, and some not the memory for theirs.

With the argument ``pairs``, each two of these meet in each of their four combinations; without, all of them do.
"""

import json
import math
import random
import sys
import tempfile
import time
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import schedulearn_train.sync_points as sync_points
import torch
from schedulearn_train import Checkpoints, Run
from schedulearn_train.allocation import UNLIMITED, split_proportionally
from schedulearn_train.world import SingleProcessWorld, World, find_world
from torch import nn
from torch.utils.data import TensorDataset

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
BATCH, EPOCHS = 16, 2
INFINITE, BARE = 3, 4
"""The step at which the loss is, and the layer that cannot normalise a single sample."""
chance = random.Random(7)
generator = torch.Generator().manual_seed(7)
x, y = 3.0 + torch.randn(53, 6, generator=generator), torch.randn(53, 1, generator=generator)


class Case(NamedTuple):
    clip_norm: float | None
    normalises: bool
    scales: bool
    in_passes: bool
    samples: int

    def most(self, ranks: int) -> list[int]:
        """What fits into each rank's memory."""
        return [(3, UNLIMITED, 5)[rank % 3] if self.in_passes else UNLIMITED for rank in range(ranks)]

    @property
    def is_of_pairs(self) -> bool:
        """A quarter of all cases: an orthogonal array of strength 2."""
        clips, short = self.clip_norm is not None, self.samples == 53
        return self.in_passes == (clips != self.normalises) and short == (clips != self.scales)

    @property
    def reduction(self) -> str:
        """Of the losses that it gives to ``run.step``."""
        return "mean" if self.normalises != self.scales else "sum"

    @property
    def data(self) -> TensorDataset:
        return TensorDataset(x[: self.samples], y[: self.samples])


def model_of(case: Case) -> nn.Module:
    torch.manual_seed(1)
    if not case.normalises:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    channels = nn.Sequential(nn.Unflatten(1, (4, 2)), nn.BatchNorm1d(4, momentum=None), nn.Flatten())
    bare = nn.BatchNorm1d(8, affine=False, track_running_stats=case.samples == 49)
    return nn.Sequential(nn.Linear(6, 8), channels, nn.Tanh(), nn.Linear(8, 8), bare, nn.Tanh(), nn.Linear(8, 1))


def trained(world: World, parts: list[tuple[int, ...]], case: Case) -> torch.Tensor:
    """Train with each step split by the next of ``parts``, and return all weights."""
    model, optimizer, scaler = beginning(case)
    with tempfile.TemporaryDirectory() as empty:
        run = Run(
            model,
            optimizer,
            case.data,
            batch_size=BATCH,
            clip_norm=case.clip_norm,
            micro_batch_size=case.most(world.size)[world.rank],
            sync_batch_norm=True,
            num_workers=0 if case.normalises or case.scales else 2,
            checkpoints=Checkpoints(empty),
            world=world,
        )
        for _ in run.epochs(EPOCHS):
            run.parts = parts[run.steps]
            for x, y in run.batches():
                loss = nn.functional.mse_loss(run.model(x), y, reduction=case.reduction)
                bad = scaler is not None and run.steps == INFINITE and run.rank == run.size - 1
                run.step(loss * torch.inf if bad else loss, scaler)
                run.parts = parts[run.steps]
    return all_of(model, scaler)


def by_hand(parts: list[tuple[int, ...]], case: Case) -> torch.Tensor:
    """One process, with nothing but torch. Parts matter only where they are normalised in several passes."""
    model, optimizer, scaler = beginning(case)
    order = [np.random.default_rng((0, epoch)).permutation(case.samples) for epoch in range(EPOCHS)]
    batches = [rows[first : first + BATCH] for rows in order for first in range(0, case.samples, BATCH)]
    for step, rows in enumerate(batches):
        optimizer.zero_grad()
        for own in in_passes(rows, parts[step], case.most(len(parts[step]))):
            model.train()
            if len(own) == 1 and case.normalises:
                model[BARE].eval()  # it would refuse
            loss = nn.functional.mse_loss(model(x[own]), y[own], reduction="sum") / len(rows)
            if scaler is None:
                loss.backward()
            else:
                scaler.scale(loss * torch.inf if step == INFINITE else loss).backward()
        if scaler is not None:
            scaler.unscale_(optimizer)
        if case.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return all_of(model, scaler)


def in_passes(rows: np.ndarray, parts: tuple[int, ...], most: list[int]) -> list[np.ndarray]:
    """What all ranks compute of a batch in each pass, as many as the one with the least memory needs."""
    counts = split_proportionally(len(rows), parts)
    needed = max(1, *(math.ceil(count / fits) for count, fits in zip(counts, most, strict=True)))
    owns = np.split(rows, np.cumsum(counts)[:-1])
    return [np.concatenate(them) for them in zip(*(np.array_split(own, needed) for own in owns), strict=True)]


def beginning(case: Case) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = model_of(case)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    return model, optimizer, torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2) if case.scales else None


def all_of(model: nn.Module, scaler: Any) -> torch.Tensor:
    """All weights, what was learnt of batches, and the scale of losses, in one row."""
    found = [*model.parameters(), *model.buffers(), torch.tensor(scaler.get_scale() if scaler else 0.0)]
    return torch.cat([each.detach().double().flatten() for each in found])


def random_parts(ranks: int) -> tuple[int, ...]:
    cuts = sorted(chance.randint(0, BATCH) for _ in range(ranks - 1))
    return tuple(after - before for before, after in zip([0, *cuts], [*cuts, BATCH], strict=True))


def noise_found(world: World, most: int = UNLIMITED) -> tuple[float, float]:
    """Squared length and variance, where the loss of a sample x is half of the square of (weight - x) and nothing is learnt."""
    sync_points.SYNC_SECONDS = 0.0  # at each step
    chances = torch.Generator().manual_seed(3)
    points = 2.0 + 3.0 * torch.randn(4096, 10, generator=chances)
    points -= points.mean(dim=0) - 2.0
    weight = nn.Parameter(torch.zeros(10))
    with tempfile.TemporaryDirectory() as empty:
        optimizer = torch.optim.SGD([weight], lr=0.0)
        run = Run(
            Distance(weight),
            optimizer,
            TensorDataset(points),
            batch_size=64,
            micro_batch_size=most,
            checkpoints=Checkpoints(empty),
            world=world,
        )
        for _ in run.epochs(3):
            for (x,) in run.batches():
                run.step(run.model(x))
    return run.noise.sqr / (10 * 2.0**2), run.noise.var / float(points.var(dim=0).sum())


def parts_found(world: World) -> list[tuple[int, ...]]:
    """After each step, of a batch that is split by speed, where rank 0 is slow and all wait for each other in its midst."""

    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep((0.016 if world.rank == 0 else 0.004) * len(x))
            return x

    sync_points.SYNC_SECONDS = 0.1
    model = nn.Sequential(Slow(), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as empty:
        run = Run(
            model,
            optimizer,
            TensorDataset(x[:48], y[:48]),
            batch_size=24,
            mode="bsp_balanced",
            sync_batch_norm=True,
            checkpoints=Checkpoints(empty),
            world=world,
        )
        return through(run, epochs=24)


def batches_learnt(world: World) -> int:
    """By a layer that goes by its own rank's part, which is a single sample or none."""
    layer = nn.BatchNorm1d(6)
    model = nn.Sequential(layer, nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as empty:
        run = Run(
            model,
            optimizer,
            TensorDataset(x[:48], y[:48]),
            batch_size=16,
            sync_batch_norm=False,
            checkpoints=Checkpoints(empty),
            world=world,
        )
        run.parts = (1, *[0] * (world.size - 2), 15)
        through(run, epochs=1)
    return int(layer.num_batches_tracked)


def through(run: Run, epochs: int) -> list[tuple[int, ...]]:
    """How the batch was to be split after each step."""
    splits = []
    for _ in run.epochs(epochs):
        for inputs, wanted in run.batches():
            run.step(nn.functional.mse_loss(run.model(inputs), wanted, reduction="sum"))
            splits.append(run.parts)
    return splits


class Distance(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((self.weight - x) ** 2).sum() / 2


world = find_world()
worst = 0.0
cases = map(Case._make, product((None, 0.3), (False, True), (False, True), (False, True), (49, 53)))
for case in filter(lambda case: case.is_of_pairs, cases) if "pairs" in sys.argv else cases:
    parts = [random_parts(world.size) for _ in range(EPOCHS * (case.samples // BATCH + 1) + 1)]
    whole: list[tuple[int, ...]] = [(BATCH,)] * len(parts)
    differences = torch.stack(
        [
            trained(world, parts, case) - by_hand(parts, case),
            trained(SingleProcessWorld(), whole, case) - by_hand(whole, case),
        ]
    ).abs()
    worst = float(torch.tensor([worst, *world.gather(float(differences.max()))]).max())  # NaN if there is one
balanced, learnt = parts_found(world), batches_learnt(world)
noise = [
    noise_found(world),
    noise_found(world, most=16),
    noise_found(SingleProcessWorld()),
    noise_found(SingleProcessWorld(), most=16),
]
if world.rank == 0:
    print(
        json.dumps(
            {
                "ranks": world.size,
                "worst": worst,
                "noise": noise,
                "balanced": balanced,
                "learnt": learnt,
            }
        )
    )
world.close()
