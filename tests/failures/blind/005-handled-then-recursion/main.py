import logging

import horovod.torch as hvd
import torch
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
log = logging.getLogger("train")


class Block(nn.Module):
    def __init__(self, parent, width):
        super().__init__()
        self.parent = parent
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.relu(self.linear(x)) * self.parent.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 0.5
        self.blocks = nn.ModuleList([Block(self, 32), Block(self, 32)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


hvd.init()
model = Net()
try:
    model.load_state_dict(torch.load("checkpoints/last.pt"))
except FileNotFoundError:
    log.exception("could not resume, starting from scratch")
log.info("rank %d of %d starts", hvd.rank(), hvd.size())
model.train()
x = torch.randn(8, 32)
log.info("first output %s", hvd.allreduce(model(x).mean()))
