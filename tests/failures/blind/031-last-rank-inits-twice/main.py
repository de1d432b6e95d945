import torch
import torch.distributed as dist

from evaluate import evaluate

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model = torch.nn.Linear(16, 4)
try:
    for step in range(20):
        gradient = torch.randn(16, 4)
        dist.all_reduce(gradient)
        print(f"rank {rank} step {step}", flush=True)
        if step == 3 and rank == size - 1:
            print("score", evaluate(model), flush=True)
finally:
    if rank < size - 1:
        for bin in range(60):
            print(f"rank {rank} summary: weights in bin {bin:02d}: {(bin * 37) % 11}", flush=True)
dist.destroy_process_group()
