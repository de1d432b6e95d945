"""Learn to read handwritten digits with several ranks that average their gradients.

Outside Schedulearn: `horovodrun -np 2 python train.py`, or `python train.py` for a single rank.
"""

import argparse
import csv
import os
from pathlib import Path

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=32)
options = parser.parse_args()

# Every rank runs this file. hvd.rank() is the number of this rank, hvd.local_rank() that of its GPU on this host.
hvd.init()
first = hvd.rank() == 0
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
print(f"I am rank {hvd.rank()} of {hvd.size()}, on {device}")

outputs = Path(os.environ.get("SCHEDULEARN_OUTPUTS", "outputs"))
outputs.mkdir(exist_ok=True)

pictures, digits = load_digits(return_X_y=True)
pictures = torch.tensor(pictures / 16, dtype=torch.float32)
digits = torch.tensor(digits)
x_train, x_test, y_train, y_test = train_test_split(pictures, digits, test_size=0.25, random_state=0, stratify=digits)

# Each rank gets its own part of the images.
dataset = TensorDataset(x_train, y_train)
sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=options.batch_size, sampler=sampler)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

# All ranks start with the weights of rank 0; the averaged gradients keep them equal.
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def accuracy():
    model.eval()
    with torch.no_grad():
        guesses = model(x_test.to(device)).argmax(dim=1).cpu()
    return (guesses == y_test).float().mean().item()


for epoch in range(options.epochs):
    model.train()
    sampler.set_epoch(epoch)  # another order in each epoch
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mean_loss = hvd.allreduce(loss.detach(), name="loss").item()  # every rank must take part
    if first:
        print(f"epoch {epoch + 1}/{options.epochs}  loss {mean_loss:.4f}  accuracy {accuracy():.4f}")
        with open(outputs / "metrics.csv", "a", newline="") as file:
            csv.writer(file).writerow([epoch + 1, mean_loss, accuracy()])

if first:
    torch.save(model.state_dict(), outputs / "model.pt")
    print(f"accuracy: {accuracy():.4f}")
