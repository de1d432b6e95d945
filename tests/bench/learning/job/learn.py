"""Three models on real data that ships with packages, trained by the library; part of a job's environment, not of the portal's.

Losses are measured afterwards, on copies of the parameters that rank 0 took during the training, so that measuring slows
no rank down.
"""

import pydoc_data.topics
import tempfile
import time
from functools import cache
from typing import Any, NamedTuple

import torch
from schedulearn_train import Checkpoints, Run, SyncMode
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

COPY_STEPS = 3
"""The number of steps from one measurement of the loss to the next, so that equal trainings have equal measurements."""
CONTEXT = 48
"""Characters that the transformer sees."""
PICTURES, WINDOWS, HELD_BACK = 7168, 3840, 256
"""The number of samples of each, a multiple of the batch: for a partial batch a slow worker has the same fixed cost, which
would distort the ratio of the longest to the shortest computing time."""


class Workload(NamedTuple):
    model: nn.Module
    optimizer: torch.optim.Optimizer
    data: TensorDataset
    held_back: TensorDataset
    batch: int
    """Of a step, on all ranks together."""
    epochs: int


class Transformer(nn.Module):
    """The next character from the last ones."""

    def __init__(self, characters: int, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.places = nn.Parameter(torch.zeros(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.layers(self.characters(x) + self.places, mask=self.mask, is_causal=True)
        return self.out(seen).flatten(0, 1)


def prepare() -> None:
    """Load what is the same for all trainings, once in the process that they are forked from."""
    import torch._dynamo  # noqa: F401 - the first step of an optimiser would

    _digits()
    _texts()


def workload(name: str, seed: int) -> Workload:
    """``seed`` draws the first weights; the data is always the same."""
    torch.manual_seed(seed)
    if name == "transformer":
        return _transformer()
    data, held_back = _digits()
    if name == "mlp":
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 10)
        )
        # Of half as many a slow worker's fixed part alone takes as long as a fast one's samples: nothing is left to split.
        return Workload(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), data, held_back, 3584, 44)
    # A slow worker gets its processor in slices, one in 10 ms: in the shorter steps of a smaller network a slice more or less
    # is a quarter of its computing.
    model = nn.Sequential(
        nn.Conv2d(1, 96, 3, padding=1), nn.ReLU(), nn.Conv2d(96, 192, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(192 * 16, 10),
    )  # fmt: skip
    # At half this rate BSP isn't done after so many epochs (0.19 to 0.22 instead of 0.10 to 0.11), at eight times it learns nothing.
    return Workload(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), data, held_back, 1024, 10)


@cache
def _digits() -> tuple[TensorDataset, TensorDataset]:
    """scikit-learn's 1,797 pictures of 8 by 8 pixels; to learn from also shifted by one pixel in four directions."""
    pictures, digits = load_digits(return_X_y=True)
    pictures, digits = torch.tensor(pictures / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(digits)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    test, rest = order[:360], order[360:]
    shifts = [(0, 0), (1, 2), (-1, 2), (1, 3), (-1, 3)]
    shifted = torch.cat([torch.roll(pictures[rest], by, along) if by else pictures[rest] for by, along in shifts])
    data = TensorDataset(shifted[:PICTURES], digits[rest].repeat(len(shifts))[:PICTURES])
    return data, TensorDataset(pictures[test], digits[test])


def _transformer() -> Workload:
    characters, data, held_back = _texts()
    model = Transformer(characters)
    return Workload(model, torch.optim.Adam(model.parameters(), lr=5e-3), data, held_back, 384, 4)


@cache
def _texts() -> tuple[int, TensorDataset, TensorDataset]:
    """The help texts of Python itself: how many characters it knows, and windows of them."""
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    known = {character: number for number, character in enumerate(sorted(set(text)))}
    codes = torch.tensor([known[character] for character in text])
    starts = torch.randint(len(codes) - CONTEXT - 1, (WINDOWS + HELD_BACK,), generator=torch.Generator().manual_seed(0))
    windows = torch.stack([codes[start : start + CONTEXT + 1] for start in starts.tolist()])
    x, y = windows[:, :-1], windows[:, 1:]
    return len(known), TensorDataset(x[:WINDOWS], y[:WINDOWS]), TensorDataset(x[WINDOWS:], y[WINDOWS:])


def learn(name: str, mode: str, balanced: bool, seed: int, epochs: int = 0) -> dict[str, Any]:
    """Train; return the report of rank 0: the total seconds, and [[seconds, loss on held-out data]] over time."""
    it = workload(name, seed)
    options: dict[str, Any] = {} if mode in ("bsp", "bsp_balanced") else {"balanced": balanced}
    sync_mode = SyncMode(mode, **options)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(
            it.model,
            it.optimizer,
            it.data,
            batch_size=it.batch,
            mode=sync_mode,
            seed=seed,
            checkpoints=Checkpoints(folder),
        )
        run.world.gather(None)
        copies: list[tuple[float, list[torch.Tensor]]] = []
        began, last = time.monotonic(), 0

        @run.elastic
        def train() -> None:
            nonlocal last
            for _ in run.epochs(epochs or it.epochs):
                for x, y in run.batches():
                    run.step(nn.functional.cross_entropy(run.model(x), y.flatten()))
                    if run.rank == 0 and run.steps - last >= COPY_STEPS:
                        last = run.steps
                        copies.append((time.monotonic() - began, _copied(run.module)))

        train()
        took = time.monotonic() - began
    if run.rank:
        return {}
    copies.append((took, _copied(run.module)))
    return {"seconds": took, "curve": [[at, _loss(it, parameters)] for at, parameters in copies]}


def _copied(model: nn.Module) -> list[torch.Tensor]:
    return [each.detach().clone() for each in model.parameters()]


def _loss(it: Workload, parameters: list[torch.Tensor]) -> float:
    x, y = it.held_back.tensors
    with torch.no_grad():
        for own, copied in zip(it.model.parameters(), parameters, strict=True):
            own.copy_(copied)
        it.model.eval()
        return float(nn.functional.cross_entropy(it.model(x), y.flatten()))
