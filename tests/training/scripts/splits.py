"""Random unequal parts of batches on several ranks, against one process with the whole of each: prints the largest difference.
And the noise of gradients that was measured, as a part of what it is.

Momentum, weight decay, clipping and a last batch that is short interact; some ranks have nothing of some batches.
"""

import json
import random
import tempfile

import schedulearn_train.looks as looks
import torch
from schedulearn_train import Checkpoints, Run
from schedulearn_train.world import Alone, World, find_world
from torch import nn
from torch.utils.data import TensorDataset

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
SAMPLES, BATCH, EPOCHS = 53, 16, 2
chance = random.Random(7)
generator = torch.Generator().manual_seed(7)
data = TensorDataset(torch.randn(SAMPLES, 6, generator=generator), torch.randn(SAMPLES, 1, generator=generator))


def trained(world: World, parts: list[tuple[int, ...]], clip_norm: float | None) -> torch.Tensor:
    """All weights after the epochs, in one row; each step is split as the next of ``parts`` says."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    with tempfile.TemporaryDirectory() as empty:
        run = Run(model, optimizer, data, batch=BATCH, clip_norm=clip_norm, checkpoints=Checkpoints(empty), world=world)
        for _ in run.epochs(EPOCHS):
            run.parts = parts[run.steps]
            for x, y in run.batches():
                run.step(nn.functional.mse_loss(run.model(x), y, reduction="sum"))
                run.parts = parts[run.steps]
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def random_parts(ranks: int) -> tuple[int, ...]:
    cuts = sorted(chance.randint(0, BATCH) for _ in range(ranks - 1))
    return tuple(after - before for before, after in zip([0, *cuts], [*cuts, BATCH], strict=True))


def noise_found(world: World) -> tuple[float, float]:
    """Squared length and variance, where the loss of a sample x is half of the square of (weight - x) and nothing is learnt."""
    looks.LOOK_SECONDS = 0.0  # at each step
    chances = torch.Generator().manual_seed(3)
    points = 2.0 + 3.0 * torch.randn(4096, 10, generator=chances)
    points -= points.mean(dim=0) - 2.0
    weight = nn.Parameter(torch.zeros(10))
    with tempfile.TemporaryDirectory() as empty:
        optimizer = torch.optim.SGD([weight], lr=0.0)
        run = Run(
            Distance(weight), optimizer, TensorDataset(points), batch=64, checkpoints=Checkpoints(empty), world=world
        )
        for _ in run.epochs(3):
            for (x,) in run.batches():
                run.step(run.model(x))
    return run.noise.sqr / (10 * 2.0**2), run.noise.var / float(points.var(dim=0).sum())


class Distance(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((self.weight - x) ** 2).sum() / 2


world = find_world()
worst = 0.0
for number in range(12):
    clip_norm = 0.3 if number % 2 else None
    parts = [random_parts(world.size) for _ in range(EPOCHS * (SAMPLES // BATCH + 1) + 1)]
    ours = trained(world, parts, clip_norm)
    alone = trained(Alone(), [(BATCH,)] * len(parts), clip_norm)
    worst = max([worst, *world.gather(float((ours - alone).abs().max()))])
noise, noise_alone = noise_found(world), noise_found(Alone())
if world.rank == 0:
    print(json.dumps({"ranks": world.size, "worst": worst, "noise": noise, "noise_alone": noise_alone}))
world.close()
