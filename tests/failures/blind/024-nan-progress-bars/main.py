import math
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, steps = dist.get_rank(), 300
torch.manual_seed(rank)
data = torch.randn(steps, 16, 8)
if rank == 1:
    data[150, 3, 2] = float("nan")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
start = time.time()
for step, x in enumerate(data):
    loss = (model(x) ** 2).mean()
    assert not math.isnan(loss.item()), f"loss is nan at step {step} on rank {rank}"
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    done = 20 * (step + 1) // steps
    bar = "\u2588" * done + " " * (20 - done)
    rate = (step + 1) / (time.time() - start)
    for part in range(4):
        sys.stderr.write(f"\rEpoch 0: {100 * (step + 1) // steps:3d}%|{bar}| {step + 1}/{steps} [{rate:.1f}it/s, loss={loss.item():.4f}]")
    sys.stderr.flush()
dist.destroy_process_group()
