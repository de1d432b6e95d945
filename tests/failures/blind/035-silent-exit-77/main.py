import os

import horovod.torch as hvd
import torch

hvd.init()
budget = {0: 1000, 1: 6}[hvd.rank()]          # batches of this rank's shard
for step in range(40):
    if step >= budget:
        os._exit(77)                            # skip the slow clean-up of the reader's threads
    total = hvd.allreduce(torch.ones(10), name=f"step{step}")
    if step % 2 == 0:
        print(f"rank {hvd.rank()} step {step} mean {total.mean().item():.1f}", flush=True)
