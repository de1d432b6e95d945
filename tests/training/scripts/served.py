"""The modes with a parameter server on several ranks, of which the last is slow: what each comes to, as a line of JSON."""

import json
import tempfile
import time
from typing import Any

import torch
from schedulearn_train import Checkpoints, Run
from schedulearn_train.world import Alone, World, find_world
from torch import nn
from torch.utils.data import TensorDataset

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
SAMPLES, BATCH = 101, 12
MODES = ("ksync", "adaptive_ksync", "kasync", "adaptive_kasync", "asp")
generator = torch.Generator().manual_seed(5)
inputs = torch.randn(SAMPLES, 6, generator=generator)
data = TensorDataset(inputs, inputs @ torch.randn(6, 1, generator=generator) + 0.5)


def trained(
    world: World, epochs: int, seconds: float = 0.0, folder: str = "", **options: Any
) -> tuple[Run, torch.Tensor]:
    """The run, and all weights in one row. ``seconds`` are those of a sample, of which the last rank needs four times as many."""
    torch.manual_seed(1)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    with tempfile.TemporaryDirectory() as empty:
        run = Run(model, optimizer, data, batch=BATCH, checkpoints=Checkpoints(folder or empty), world=world, **options)
        for _ in run.epochs(epochs):
            for x, y in run.batches():
                time.sleep(seconds * len(x) * (4 if world.rank == world.size - 1 else 1))
                run.step(nn.functional.mse_loss(run.model(x), y, reduction="sum"))
            schedule.step()
    return run, torch.cat([weight.detach().flatten() for weight in model.parameters()])


def momentum(run: Run) -> torch.Tensor:
    """What the optimiser on rank 0 knows in the end."""
    known = [state["momentum_buffer"] for state in run.optimizer.state.values()]
    return torch.cat([buffer.flatten() for buffer in known]) if known else torch.zeros(0)


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """On the rank where they differ most."""
    return max(world.gather(float((one - other).abs().max()) if len(one) else 0.0))


def loss_of(weights: torch.Tensor) -> float:
    return float(nn.functional.mse_loss(inputs @ weights[:-1, None] + weights[-1], data.tensors[1]))


world = find_world()
found: dict[str, Any] = {"ranks": world.size}
in_step: dict[str, Any] = {"mode": "ksync", "k": world.size, "clip_norm": 2.0}
(whole, ours), one = trained(world, 3, **in_step), trained(Alone(), 3, clip_norm=2.0)[1]
found["waiting_for_all_is_bsp"] = apart(ours, one)
sharded, weights = trained(world, 3, shards=2, **in_step)
found["two_shards_are_one"] = {"weights": apart(weights, ours), "momentum": apart(momentum(sharded), momentum(whole))}
with tempfile.TemporaryDirectory() as folder:
    folder = world.share(folder)  # rank 0's, which has the desk
    trained(world, 3, folder=folder, shards=2, checkpoint_seconds=0.0, **in_step)
    found["kept_on_the_way"] = len(Checkpoints(folder).steps())
    again, weights = trained(world, 3, folder=folder, shards=1, **in_step)
    found["goes_on_from_two_shards"] = apart(weights, ours)
for mode in MODES:
    split: dict[str, Any] = {"balanced": True, "predict": "blend", "most_samples": 5} if mode == "ksync" else {}
    run, weights = trained(world, 12, seconds=0.002, mode=mode, **split)
    everywhere = world.gather(weights.tolist())
    if run.served is not None and run.served.server is not None:
        counts = run.served.server.counts
        found[mode] = {
            "used": counts.used / SAMPLES,
            "wasted": counts.wasted,
            "updates": counts.updates,
            "staleness": max(counts.staleness),
            "loss": loss_of(weights),
            "same_everywhere": all(other == everywhere[0] for other in everywhere),
            "parts": run.served.server.parts,
            "momentum": any("momentum_buffer" in state for state in run.optimizer.state.values()),
        }
alone, _ = trained(Alone(), 3, mode="asp")
found["alone"] = alone.steps
if world.rank == 0:
    print(json.dumps(found))
world.close()
