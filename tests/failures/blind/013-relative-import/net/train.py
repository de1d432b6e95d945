import argparse

import torch
import torch.distributed as dist

from .model import Net

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10)
arguments = parser.parse_args()
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(Net(4, 1))
for step in range(arguments.steps):
    net(torch.randn(2, 4)).sum().backward()
dist.destroy_process_group()
