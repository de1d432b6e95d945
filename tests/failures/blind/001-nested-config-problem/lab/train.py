import argparse

import torch
import torch.distributed as dist

from lab.config import Config

parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
arguments = parser.parse_args()

dist.init_process_group("gloo")
print(f"rank {dist.get_rank()} of {dist.get_world_size()} is ready", flush=True)
config = Config(arguments.config)
model = torch.nn.Linear(config.values["model.width"], 1)
dist.destroy_process_group()
