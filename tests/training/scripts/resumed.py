"""A training that goes on with another number of ranks, twice in the middle of an epoch: its curve, and that of one never stopped."""

import json
import tempfile

import torch
from schedulearn_train import Checkpoints, Run
from schedulearn_train.world import SingleProcessWorld, World, find_world
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
SAMPLES, BATCH, EPOCHS = 50, 12, 6
STEPS = EPOCHS * 5
STOPPED = 7, 18
generator = torch.Generator().manual_seed(4)
inputs = torch.randn(SAMPLES, 6, generator=generator)
targets = inputs.prod(dim=1, keepdim=True).tanh()
data = TensorDataset(inputs, targets)


def trained(world: World, folder: str, until: int) -> list[float]:
    """The loss over all data after each step, from the newest checkpoint in the folder to that step."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    run = Run(
        model,
        optimizer,
        data,
        batch_size=BATCH,
        clip_norm=0.2,
        extra_state={"schedule": schedule},
        checkpoints=Checkpoints(folder),
        world=world,
    )
    curve: list[float] = []
    for _ in run.epochs(EPOCHS):
        for x, y in run.batches():
            run.step(mse_loss(run.model(x), y, reduction="sum"))
            with torch.no_grad():
                curve.append(float(mse_loss(model(inputs), targets)))
            if run.steps == until:
                run.save()
                return curve
        schedule.step()
    return curve


world = find_world()
with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as empty:
    kept = world.share(kept)
    whole = trained(SingleProcessWorld(), empty, STEPS)
    curve = trained(SingleProcessWorld(), kept, STOPPED[0]) if world.rank == 0 else []
    world.gather(None)
    curve += trained(world, kept, STOPPED[1])
    world.gather(None)
    if world.rank == 0:
        curve += trained(SingleProcessWorld(), kept, STEPS)
        off = [abs(own - other) for own, other in zip(curve, whole, strict=True)]
        print(json.dumps({"ranks": world.size, "steps": len(curve), "off": max(off), "fell_to": curve[-1] / curve[0]}))
    world.gather(None)
