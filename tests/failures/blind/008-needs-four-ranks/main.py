import sys

import horovod.torch as hvd
import torch

STAGES = ("embed", "encode", "decode", "loss")

hvd.init()
if hvd.size() != len(STAGES):
    sys.exit(f"pipeline of {len(STAGES)} stages needs {len(STAGES)} ranks, but hvd.size() is {hvd.size()}")
print(f"rank {hvd.rank()} does {STAGES[hvd.rank()]}")
print(hvd.allreduce(torch.ones(1)))
