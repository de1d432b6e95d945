"""States of models and optimisers from one rank to the others, tensor by tensor, without a pickle of gigabytes.

Horovod has functions for this. They make a step with a rank's optimiser when it has no state yet, which lets the weights
of a rank that has just come decay once more than those of the others, and counts a step that Adam never made.
"""

from dataclasses import dataclass
from typing import Any

import torch

from .world import World


@dataclass(frozen=True)
class Outline:
    """Where a tensor was."""

    shape: torch.Size
    dtype: torch.dtype
    on_gpu: bool


def shared(world: World, state: Any, root: int = 0) -> Any:
    """The ``root``'s state on every rank. What the others give is not looked at."""
    tensors: list[torch.Tensor] = []
    outline = world.share(_outlined(state, tensors) if world.rank == root else None, root)
    return _filled(outline, world, tensors, root)


def _outlined(state: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(state, torch.Tensor):
        tensors.append(state.detach())
        return Outline(state.shape, state.dtype, state.is_cuda)
    if isinstance(state, dict):
        return {key: _outlined(value, tensors) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)([_outlined(value, tensors) for value in state])
    return state


def _filled(outline: Any, world: World, tensors: list[torch.Tensor], root: int) -> Any:
    if isinstance(outline, Outline):
        if world.rank == root:
            tensor = tensors.pop(0)
        else:
            device = "cuda" if outline.on_gpu else "cpu"
            tensor = torch.empty(outline.shape, dtype=outline.dtype, device=device)
        return world.broadcast(tensor, root)
    if isinstance(outline, dict):
        return {key: _filled(value, world, tensors, root) for key, value in outline.items()}
    if isinstance(outline, list | tuple):
        return type(outline)([_filled(value, world, tensors, root) for value in outline])
    return outline
