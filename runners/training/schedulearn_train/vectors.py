"""Converts parameters and gradients of a model to one vector on the CPU, in the order of the parameters, and back."""

from collections.abc import Iterator, Sequence

import torch
from torch import nn


def vector_type(parameters: Sequence[nn.Parameter]) -> torch.dtype:
    return torch.float64 if any(each.dtype == torch.float64 for each in parameters) else torch.float32


def flatten(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """Return a copy of the parameters as one vector."""
    dtype = vector_type(parameters)
    return torch.cat([each.detach().reshape(-1).to("cpu", dtype) for each in parameters])


def flatten_gradients(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """Return the gradients as one vector, with zeros for parameters that the loss does not depend on."""
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


def group_by_type(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Group tensors that can be parts of one vector, by type and device, in an order that does not depend on the rank."""
    groups: dict[tuple[torch.dtype, str], list[torch.Tensor]] = {}
    for each in tensors:
        groups.setdefault((each.dtype, each.device.type), []).append(each)
    yield from groups.values()


def flatten_with_presence(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return one vector of all gradients, with zeros where there is none, followed by a 1 or 0 for each: present or not."""
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    present = parameters[0].new_tensor([each.grad is not None for each in parameters])
    return torch.cat([*(each.reshape(-1) for each in gradients), present])


def fill_present(parameters: Sequence[torch.Tensor], vector: torch.Tensor) -> None:
    """Set the gradients from such a vector, or from the sum of several; None where no rank had a gradient."""
    *gradients, present = vector.split([*(each.numel() for each in parameters), len(parameters)])
    for parameter, gradient, count in zip(parameters, gradients, present, strict=True):
        if parameter.grad is not None or bool(count):  # reading the count waits for the GPU, so it comes second
            parameter.grad = gradient.view_as(parameter)


def views_of(parameters: Sequence[nn.Parameter], vector: torch.Tensor) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
    """Yield each parameter with its values in the vector."""
    pieces = vector.split([each.numel() for each in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        yield parameter, piece.view_as(parameter)
