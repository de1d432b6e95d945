"""A training job by torchrun that only counts its steps, like ring_job.py. Each host keeps the last as its snapshot."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

enough = Path(os.environ["SCHEDULEARN_DATA"]) / "enough"
snapshot = Path(os.environ["SCHEDULEARN_CHECKPOINTS"]) / "step"
signals: list[int] = []
signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
known = torch.tensor(int(snapshot.read_text()) if snapshot.exists() else 0)
dist.all_reduce(known, op=dist.ReduceOp.MAX)
step = int(known)
print(f"pid {os.getpid()} of {os.uname().nodename} is rank {rank} of {size} at step {step}")

weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.grad = torch.ones(1)

done = stopped = False
while not (done or stopped):
    time.sleep(0.1)
    state = torch.tensor([1, enough.exists(), bool(signals)], dtype=torch.int64)
    dist.all_reduce(state)
    ranks, done, stopped = int(state[0]), bool(state[1]), bool(state[2])
    step += 1
    optimizer.step()
    if rank == 0:
        print(f"step {step} of {ranks} ranks at {time.time():.3f}")
    dist.barrier()  # no snapshot is ahead of what was printed
    beside = snapshot.with_name(f"step.{rank}.new")
    beside.write_text(str(step))
    beside.replace(snapshot)

if done:
    print(f"done at step {step}")
dist.barrier()
dist.destroy_process_group()
