import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)
        self.auxiliary = nn.Linear(8, 3)

    def forward(self, x, auxiliary=False):
        x = torch.relu(self.body(x))
        return self.auxiliary(x) if auxiliary else self.head(x)


dist.init_process_group("gloo")
model = DistributedDataParallel(TwoHeads())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    print("step", step, flush=True)
dist.destroy_process_group()
