"""Learn to read handwritten digits with DistributedDataParallel, on a number of ranks that may change at any time.

When it changes, all ranks get SIGTERM and are restarted from the snapshot.
Outside Schedulearn: `torchrun --nproc-per-node 2 train.py`.
"""

import argparse
import csv
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=32)
options = parser.parse_args()

# torchrun sets environment variables with the number of each rank and the address of the group.
on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
torch.manual_seed(0)
print(f"I am rank {rank} of {size}, on {device}")

outputs = Path(os.environ.get("SCHEDULEARN_OUTPUTS", "outputs"))
checkpoints = Path(os.environ.get("SCHEDULEARN_CHECKPOINTS", "checkpoints"))
outputs.mkdir(exist_ok=True)
checkpoints.mkdir(exist_ok=True)
snapshot = checkpoints / "latest.pt"

stop_signals = []
signal.signal(signal.SIGTERM, lambda *_: stop_signals.append(True))

pictures, digits = load_digits(return_X_y=True)
pictures = torch.tensor(pictures / 16, dtype=torch.float32)
digits = torch.tensor(digits)
x_train, x_test, y_train, y_test = train_test_split(pictures, digits, test_size=0.25, random_state=0, stratify=digits)

# Each rank gets its own part of the images.
dataset = TensorDataset(x_train, y_train)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=options.batch_size, sampler=sampler)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

# Each machine may have its own /checkpoints, which is empty on a new one: all ranks use the newest snapshot.
mine = torch.load(snapshot, map_location="cpu") if snapshot.exists() else None
epochs = [0] * size
dist.all_gather_object(epochs, mine["epoch"] if mine else 0)
newest = [mine]
dist.broadcast_object_list(newest, src=epochs.index(max(epochs)))
if newest[0]:
    model.load_state_dict(newest[0]["model"])
    optimizer.load_state_dict(newest[0]["optimizer"])
first_epoch = max(epochs)

ddp_model = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)


def accuracy():
    model.eval()
    with torch.no_grad():
        guesses = model(x_test.to(device)).argmax(dim=1).cpu()
    return (guesses == y_test).float().mean().item()


def save(epoch):
    """Save a snapshot, once on each machine. Written to another file and renamed, it is always complete."""
    if os.environ["LOCAL_RANK"] == "0":
        new = checkpoints / f"latest.{rank}.new"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, new)
        new.replace(snapshot)


def must_stop():
    """Return whether any rank has got SIGTERM, so that all ranks stop after the same epoch."""
    signalled = torch.tensor(float(bool(stop_signals)), device=device)
    dist.all_reduce(signalled)
    return signalled.item() > 0


for epoch in range(first_epoch, options.epochs):
    ddp_model.train()
    sampler.set_epoch(epoch)  # another order in each epoch
    for x, y in loader:
        loss = nn.functional.cross_entropy(ddp_model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()  # averages the gradients over all ranks
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch + 1}/{options.epochs}  ranks {size}  loss {loss.item():.4f}  accuracy {accuracy():.4f}")
        with open(outputs / "metrics.csv", "a", newline="") as file:
            csv.writer(file).writerow([epoch + 1, size, loss.item(), accuracy()])
    save(epoch + 1)
    if must_stop():
        break
else:
    if rank == 0:
        torch.save(model.state_dict(), outputs / "model.pt")
        print(f"accuracy: {accuracy():.4f}")
dist.barrier()  # no rank ends while another one still needs it
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # DistributedDataParallel still uses the group, whose threads sometimes crash at a normal exit
