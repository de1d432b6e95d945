"""Learn to read handwritten digits with a number of ranks that may change at any time.

Outside Schedulearn: `horovodrun -np 1 --min-np 1 --max-np 2 -H localhost:2 python train.py`, or `python train.py`.
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

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=32)
options = parser.parse_args()

hvd.init()
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

outputs = Path(os.environ.get("SCHEDULEARN_OUTPUTS", "outputs"))
checkpoints = Path(os.environ.get("SCHEDULEARN_CHECKPOINTS", "checkpoints"))
outputs.mkdir(exist_ok=True)
checkpoints.mkdir(exist_ok=True)
checkpoint = checkpoints / "latest.pt"

# 1,797 images of 8 x 8 pixels, shipped with scikit-learn: nothing is downloaded.
pictures, digits = load_digits(return_X_y=True)
pictures = torch.tensor(pictures / 16, dtype=torch.float32)
digits = torch.tensor(digits)
x_train, x_test, y_train, y_test = train_test_split(pictures, digits, test_size=0.25, random_state=0, stratify=digits)

# This sampler remembers which images of the epoch are done, and distributes the rest over the present ranks.
dataset = TensorDataset(x_train, y_train)
sampler = hvd.elastic.ElasticSampler(dataset)
loader = DataLoader(dataset, batch_size=options.batch_size, sampler=sampler)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
first_epoch = 0
if checkpoint.exists():
    saved = torch.load(checkpoint, map_location=device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])  # after wrapping: Horovod resets the state
    first_epoch = saved["epoch"]


def accuracy():
    model.eval()
    with torch.no_grad():
        guesses = model(x_test.to(device)).argmax(dim=1).cpu()
    return (guesses == y_test).float().mean().item()


def save(epoch, loss):
    """Save an epoch, on rank 0. Written to another file and renamed, a checkpoint is always complete."""
    print(f"epoch {epoch}/{options.epochs}  ranks {hvd.size()}  loss {loss:.4f}  accuracy {accuracy():.4f}")
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(saved, checkpoint.with_suffix(".new"))
    checkpoint.with_suffix(".new").replace(checkpoint)
    with open(outputs / "metrics.csv", "a", newline="") as file:
        csv.writer(file).writerow([epoch, hvd.size(), loss, accuracy()])


@hvd.elastic.run  # restarts from the last commit when the number of ranks changes
def train(state):
    print(f"I am rank {hvd.rank()} of {hvd.size()} on {device}, in epoch {state.epoch + 1}")
    while state.epoch < options.epochs:
        model.train()
        loss = torch.zeros(())
        for number, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sampler.record_batch(number, len(x))
            if number % 10 == 9:
                state.commit()  # saves this state; the number of ranks can change here
        mean_loss = hvd.allreduce(loss.detach(), name="loss").item()
        state.epoch += 1
        sampler.set_epoch(state.epoch)
        if hvd.rank() == 0:
            save(state.epoch, mean_loss)
        state.commit()


# Everything that a new rank needs.
train(hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=first_epoch))

if hvd.rank() == 0:
    torch.save(model.state_dict(), outputs / "model.pt")
    print(f"accuracy: {accuracy():.4f}")
