import numpy as np
import torch

import pretty

data = torch.from_numpy(np.random.default_rng(3).normal(size=(64, 20)))
model = torch.nn.Sequential(torch.nn.Linear(20, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
print("\x1b[32mINFO\x1b[0m     data ready", flush=True)
print(model(data).mean().item())
