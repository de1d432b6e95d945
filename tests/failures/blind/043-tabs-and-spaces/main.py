import horovod.torch as hvd
import torch

hvd.init()
model = torch.nn.Linear(4, 1)
for epoch in range(3):
    for step in range(10):
        x = torch.randn(2, 4)
        loss = model(x).sum()
	print(epoch, step, loss.item())
        loss.backward()
    hvd.allreduce(loss.detach())
