import datetime
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
group = dist.new_group(timeout=datetime.timedelta(seconds=6))
x = torch.ones(1000)
dist.all_reduce(x, group=group)
print(f"rank {rank}: first step done", flush=True)
if rank == 1:
    print("rank 1: validating on the whole set", flush=True)
    time.sleep(15)
dist.all_reduce(x, group=group)
print(f"rank {rank}: second step done", flush=True)
dist.destroy_process_group()
