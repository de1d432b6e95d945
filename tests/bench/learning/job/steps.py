"""Two ranks of Horovod that do nothing but steps: blocks of them by hand, with the library, and with the library telling of them.

All in one process: one start of a training is a tenth faster than the next here, for reasons of neither. Rank 0 prints
``blocks <by hand> <with the library> <telling>``, in seconds per step.
"""

import itertools
import os
import time
from collections.abc import Iterator

import horovod.torch as hvd
import torch
from schedulearn_train import Run, looks
from schedulearn_train.report import Reporter
from torch import nn
from torch.utils.data import TensorDataset

BATCH, SAMPLES, EPOCHS = 512, 51_200, 1_000_000
"""Of both ranks together: an epoch takes two seconds. They end by the number of pairs."""
STEPS, ROUNDS, FIRST = 5, 150, 10
"""Of a block, which is short, as the machine is faster in one second than in the next; of rounds that count, and before."""
looks.LOOK_SECONDS *= 2  # half of the seconds are not the library's

hvd.init()
processors = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {processors[hvd.local_rank() % len(processors)]})
torch.manual_seed(0)
images, labels = torch.randn(SAMPLES, 1, 28, 28), torch.randint(10, (SAMPLES,))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 6 * 6, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def by_hand() -> Iterator[None]:
    """As one writes it: a permutation for each epoch, every rank its part of each batch. A step each time it is asked."""
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    part = BATCH // hvd.size()
    for epoch in range(EPOCHS):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        for start in range(0, SAMPLES, BATCH):
            mine = order[start + hvd.rank() * part : start + (hvd.rank() + 1) * part]
            x, y = images[mine], labels[mine]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            yield


def with_library() -> Iterator[None]:
    for _ in run.epochs(EPOCHS):
        for x, y in run.batches():
            run.step(nn.functional.cross_entropy(run.model(x), y, reduction="sum"))
            yield


class Silent(Reporter):
    """Never asks what there is to tell, either."""

    def due(self, last: bool = False) -> bool:
        return False


def seconds(steps: Iterator[None]) -> float:
    """Per step of the next block."""
    begun = time.perf_counter()
    for _ in itertools.islice(steps, STEPS):
        pass
    return (time.perf_counter() - begun) / STEPS


own = network()
run = Run(own, sgd(own), TensorDataset(images, labels), batch=BATCH)


@run.elastic
def compare() -> None:
    plain, library = by_hand(), with_library()
    silent, telling = Silent(), run.reporter
    orders = list(itertools.permutations((None, silent, telling)))
    for number in range(FIRST + ROUNDS):
        took: dict[Reporter | None, float] = {}
        for reporter in orders[number % len(orders)]:
            run.reporter = reporter or silent
            took[reporter] = seconds(library if reporter else plain)
        if number >= FIRST and hvd.rank() == 0:
            print(f"blocks {took[None]:.6f} {took[silent]:.6f} {took[telling]:.6f}", flush=True)


compare()
