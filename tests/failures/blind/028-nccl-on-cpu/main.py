import argparse

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="nccl", choices=("nccl", "gloo"))
arguments = parser.parse_args()
dist.init_process_group(arguments.backend)
x = torch.ones(1)
dist.all_reduce(x)
print(x.item())
dist.destroy_process_group()
