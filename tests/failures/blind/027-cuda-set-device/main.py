import horovod.torch as hvd
import torch

hvd.init()
torch.cuda.set_device(hvd.local_rank())
model = torch.nn.Linear(8, 1).cuda()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
for step in range(10):
    optimizer.zero_grad()
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
