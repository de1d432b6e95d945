"""A small training on a kind of device: prints its losses as JSON, in whole precision and in mixed.

python learns.py cpu|cuda, alone or as one of several ranks, each with a GPU of its own while there are enough.
"""

import json
import os
import sys
import tempfile

import torch
from schedulearn_train import Checkpoints, Run
from schedulearn_train.world import World, find_world
from torch import nn
from torch.utils.data import TensorDataset

DEVICE, MODE = sys.argv[1], os.environ.get("SCHEDULEARN_MODE", "bsp")
if DEVICE == "cpu":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # where there are GPUs the library takes them


def losses(world: World, mixed: bool) -> list[float]:
    """A sample's mean in each epoch, over all ranks."""
    generator = torch.Generator().manual_seed(7)
    given = torch.randn(2048, 20, generator=generator)
    wanted = torch.tanh(given @ torch.randn(20, 1, generator=generator))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(DEVICE) if mixed and MODE == "bsp" else None
    extra_state = {"scaler": scaler} if scaler else {}
    found = []
    with tempfile.TemporaryDirectory() as empty:
        data, kept = TensorDataset(given, wanted), Checkpoints(empty)
        run = Run(
            model, optimizer, data, batch_size=64, clip_norm=1.0, checkpoints=kept, extra_state=extra_state, world=world
        )
        for _ in run.epochs(4):
            total = torch.zeros((), device=DEVICE)
            for x, y in run.batches():
                with torch.autocast(DEVICE, torch.float16 if scaler else torch.bfloat16, enabled=mixed):
                    predicted = run.model(x.to(DEVICE))
                loss = nn.functional.mse_loss(predicted.float(), y.to(DEVICE), reduction="sum")
                run.step(loss, scaler=scaler)
                total += loss.detach()
            found.append(sum(world.gather(float(total))) / len(data))
    return found


if DEVICE == "cuda":
    place = int(os.environ.get("LOCAL_RANK", os.environ.get("HOROVOD_LOCAL_RANK", "0"))) % torch.cuda.device_count()
    if "LOCAL_RANK" in os.environ:
        os.environ["LOCAL_RANK"] = str(place)
    torch.cuda.set_device(place)
world = find_world()
results = {"whole": losses(world, mixed=False), "mixed": losses(world, mixed=True), "ranks": world.size}
if world.rank == 0:
    print(json.dumps(results))
world.close()
