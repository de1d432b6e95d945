"""Parameters and gradients of a model as one vector on the CPU, in the order of the parameters."""

from collections.abc import Iterator, Sequence

import torch
from torch import nn


def vector_type(parameters: Sequence[nn.Parameter]) -> torch.dtype:
    return torch.float64 if any(each.dtype == torch.float64 for each in parameters) else torch.float32


def flat(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """A copy."""
    dtype = vector_type(parameters)
    return torch.cat([each.detach().reshape(-1).to("cpu", dtype) for each in parameters])


def flat_gradients(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """Zeros for what the loss does not depend on."""
    dtype = vector_type(parameters)
    gradients = (torch.zeros_like(each) if each.grad is None else each.grad for each in parameters)
    return torch.cat([each.reshape(-1).to("cpu", dtype) for each in gradients])


def fill(parameters: Sequence[nn.Parameter], vector: torch.Tensor) -> None:
    with torch.no_grad():
        for parameter, values in views_of(parameters, vector):
            parameter.copy_(values)


def fill_gradients(parameters: Sequence[nn.Parameter], vector: torch.Tensor) -> None:
    for parameter, values in views_of(parameters, vector):
        parameter.grad = values.to(parameter)


def views_of(parameters: Sequence[nn.Parameter], vector: torch.Tensor) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
    """Each parameter with its values in the vector."""
    pieces = vector.split([each.numel() for each in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        yield parameter, piece.view_as(parameter)
