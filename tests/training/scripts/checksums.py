"""Checksums and differences of parameters in one process, and the error of a parameter server for a layer that is unfrozen."""

import json
import tempfile

import torch
from schedulearn_train import Checkpoints, Run
from schedulearn_train.divergence import Difference, checksums, message, relative_difference, tolerance
from schedulearn_train.world import SingleProcessWorld
from torch import nn
from torch.utils.data import TensorDataset

generator = torch.Generator().manual_seed(6)
TYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


def some(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    values = 10 * torch.rand(*shape, generator=generator)
    return values.to(dtype)


def last_bit_counts(tensor: torch.Tensor) -> bool:
    other = tensor.clone()
    raw = other.reshape(-1).view(torch.uint8)
    raw[-1] ^= 1
    return checksums([tensor]) == checksums([tensor.clone()]) != checksums([other])


def unfreezes(mode: str) -> str:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    data = TensorDataset(torch.ones(8, 3), torch.ones(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tempfile.TemporaryDirectory() as empty:
        run = Run(
            model, optimizer, data, batch_size=4, mode=mode, checkpoints=Checkpoints(empty), world=SingleProcessWorld()
        )
        try:
            for _ in run.epochs(4):
                for inputs, wanted in run.batches():
                    model[0].requires_grad_(run.steps >= 2)
                    run.step(nn.functional.mse_loss(run.model(inputs), wanted, reduction="sum"))
        except ValueError as error:
            return str(error)
    return ""


images = some((4, 3, 5, 5), torch.float32)
nan = torch.tensor([1.0, torch.nan])
inf = torch.tensor([1.0, torch.inf])
parts = [Difference("a.weight", 0.031, 1e-3), Difference("b", float("inf"), 1e-3)]
answers = {
    "last bits": [last_bit_counts(some(shape, dtype)) for dtype in TYPES for shape in ((6, 4), (7,), (1,))],
    "memory": checksums([images]) == checksums([images.to(memory_format=torch.channels_last)]),
    "a part of a tensor": checksums([images[1:, 1]]) == checksums([images[1:, 1].clone()]),
    "nothing": [checksums([]), checksums([torch.empty(0, 3)])],
    "distances": [
        relative_difference(torch.tensor([2.0, -4.0]), torch.tensor([2.0, -5.0])),
        relative_difference(torch.tensor([3, 4], dtype=torch.int32), torch.tensor([3, 5], dtype=torch.int32)),
        relative_difference(nan, nan.clone()),
        relative_difference(inf, inf.clone()),
    ],
    "beyond": [
        relative_difference(nan, torch.ones(2)) == float("inf"),
        relative_difference(torch.ones(2), torch.zeros(2)) == float("inf"),
    ],
    "tolerances": [tolerance(torch.ones(1, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16, torch.int32)],
    "message": message(12, {1: parts, 3: parts[:1]}, 0, 9),
    "server": {mode: unfreezes(mode) for mode in ("bsp", "asp", "ksync")},
}
print(json.dumps(answers))
