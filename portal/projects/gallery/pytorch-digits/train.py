"""Learn to read handwritten digits with plain PyTorch.

Runs anywhere: `python train.py`. Schedulearn sets the folders for outputs and checkpoints in environment variables and
draws the curves; elsewhere the folders are created in the current folder.
"""

import argparse
import csv
import os
from pathlib import Path

import torch
from schedulearn_train import log_metric
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=32)
options = parser.parse_args()

# Files in "outputs" appear on the job's page. Files in "checkpoints" are available again when the job is retried.
outputs = Path(os.environ.get("SCHEDULEARN_OUTPUTS", "outputs"))
checkpoints = Path(os.environ.get("SCHEDULEARN_CHECKPOINTS", "checkpoints"))
outputs.mkdir(exist_ok=True)
checkpoints.mkdir(exist_ok=True)
checkpoint = checkpoints / "latest.pt"

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

# 1,797 images of 8 x 8 pixels, shipped with scikit-learn: nothing is downloaded.
pictures, digits = load_digits(return_X_y=True)
pictures = torch.tensor(pictures / 16, dtype=torch.float32)
digits = torch.tensor(digits)
x_train, x_test, y_train, y_test = train_test_split(pictures, digits, test_size=0.25, random_state=0, stratify=digits)
loader = DataLoader(TensorDataset(x_train, y_train), batch_size=options.batch_size, shuffle=True)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
first_epoch = 0

if checkpoint.exists():
    saved = torch.load(checkpoint, map_location=device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first_epoch = saved["epoch"]
    print(f"Restarting after epoch {first_epoch}")


def accuracy():
    """Return the fraction of the test images that the model reads correctly."""
    model.eval()
    with torch.no_grad():
        guesses = model(x_test.to(device)).argmax(dim=1).cpu()
    return (guesses == y_test).float().mean().item()


print(f"Training on {device} with {len(x_train)} images")
for epoch in range(first_epoch, options.epochs):
    model.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}/{options.epochs}  loss {loss.item():.4f}  accuracy {accuracy():.4f}")
    log_metric("train/loss", loss.item(), step=epoch + 1)
    log_metric("validation/accuracy", accuracy(), step=epoch + 1)

    # Written to another file and renamed, so that the checkpoint is always complete.
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
    torch.save(saved, checkpoint.with_suffix(".new"))
    checkpoint.with_suffix(".new").replace(checkpoint)
    with open(outputs / "metrics.csv", "a", newline="") as file:
        csv.writer(file).writerow([epoch + 1, loss.item(), accuracy()])

torch.save(model.state_dict(), outputs / "model.pt")
print(f"accuracy: {accuracy():.4f}")
