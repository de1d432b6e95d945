import horovod.torch as hvd
import torch


class EarlyStop(Exception):
    """No improvement for long enough."""


def validate(model, x, y):
    with torch.no_grad():
        return torch.nn.functional.mse_loss(model(x), y).item()


hvd.init()
torch.manual_seed(hvd.rank())
x, y = torch.randn(256, 16), torch.randn(256, 1)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

best, waited = float("inf"), 0
for epoch in range(200):
    for start in range(0, 256, 64):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x[start:start + 64]), y[start:start + 64]).backward()
        optimizer.step()
    if hvd.rank() == 0:
        loss = validate(model, x, y)
        print(f"epoch {epoch} validation {loss:.4f}", flush=True)
        if loss < best - 0.5:
            best, waited = loss, 0
        else:
            waited += 1
        if waited == 4:
            raise EarlyStop
print("done")
