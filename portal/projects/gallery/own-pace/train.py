"""Learn to read handwritten digits with ranks that do not wait for each other.

Outside Schedulearn: `torchrun --nproc-per-node 2 train.py`.
"""

import argparse
import csv
import os
from pathlib import Path

import torch
from schedulearn_train import Run, log_metric
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=64, help="size for a step, of all ranks together")
parser.add_argument("--mode", default="adaptive_ksync")
options = parser.parse_args()
torch.manual_seed(0)

outputs = Path(os.environ.get("SCHEDULEARN_OUTPUTS", "outputs"))
outputs.mkdir(exist_ok=True)

pictures, digits = load_digits(return_X_y=True)
pictures = torch.tensor(pictures / 16, dtype=torch.float32)
digits = torch.tensor(digits)
x_train, x_test, y_train, y_test = train_test_split(pictures, digits, test_size=0.25, random_state=0, stratify=digits)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)


def accuracy():
    model.eval()
    with torch.no_grad():
        guesses = model(x_test.to(run.device)).argmax(dim=1).cpu()
    return (guesses == y_test).float().mean().item()


def report(epoch):
    """Report an epoch, on rank 0: in the log, as a curve on the job's page, and in a file."""
    print(f"epoch {epoch}/{options.epochs}  ranks {run.size}  loss {run.loss:.4f}  accuracy {accuracy():.4f}")
    log_metric("validation/accuracy", accuracy())
    with open(outputs / "metrics.csv", "a", newline="") as file:
        csv.writer(file).writerow([epoch, run.size, run.loss, accuracy()])


data = TensorDataset(x_train, y_train)
run = Run(model, optimizer, data, batch=options.batch_size, mode=options.mode)


@run.elastic  # called again when the number of ranks has changed
def train():
    print(f"I am rank {run.rank} of {run.size} on {run.device}, at step {run.steps}")
    for epoch in run.epochs(options.epochs):
        for x, y in run.batches():
            run.step(nn.functional.cross_entropy(run.model(x), y, reduction="sum"))
        if run.rank == 0:
            report(epoch + 1)


train()
if run.rank == 0:
    torch.save(model.state_dict(), outputs / "model.pt")
    print(f"accuracy: {accuracy():.4f}")
