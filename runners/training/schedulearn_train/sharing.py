"""Sends states of models and optimisers from one rank to the others, tensor by tensor, without a pickle of gigabytes.

Horovod's functions for this make a step with an optimiser that has no state yet. So the weights of a rank that has just
joined would decay once more than those of the others, and Adam would count a step that it never made.
"""

from dataclasses import dataclass
from typing import Any

import torch

from .world import World


@dataclass(frozen=True)
class Outline:
    """Stands for a tensor in a state that is sent without its tensors."""

    shape: torch.Size
    dtype: torch.dtype
    on_gpu: bool


def share_state(world: World, state: Any, root: int = 0, through_cpu: bool = False) -> Any:
    """Return the ``root``'s state on every rank; what the others pass is ignored.

    ``through_cpu`` moves tensors of GPUs into the machine's memory, where they stay: ranks that share a GPU cannot
    exchange anything by NCCL.
    """
    tensors: list[torch.Tensor] = []
    outline = world.share(_strip_tensors(state, tensors, through_cpu) if world.rank == root else None, root)
    return _restore_tensors(outline, world, tensors, root)


def _strip_tensors(state: Any, tensors: list[torch.Tensor], through_cpu: bool) -> Any:
    if isinstance(state, torch.Tensor):
        tensor = state.detach().cpu() if through_cpu else state.detach()
        tensors.append(tensor)
        return Outline(tensor.shape, tensor.dtype, tensor.is_cuda)
    if isinstance(state, dict):
        return {key: _strip_tensors(value, tensors, through_cpu) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)([_strip_tensors(value, tensors, through_cpu) for value in state])
    return state


def _restore_tensors(outline: Any, world: World, tensors: list[torch.Tensor], root: int) -> Any:
    if isinstance(outline, Outline):
        if world.rank == root:
            tensor = tensors.pop(0)
        else:
            device = "cuda" if outline.on_gpu else "cpu"
            tensor = torch.empty(outline.shape, dtype=outline.dtype, device=device)
        return world.broadcast(tensor, root)
    if isinstance(outline, dict):
        return {key: _restore_tensors(value, world, tensors, root) for key, value in outline.items()}
    if isinstance(outline, list | tuple):
        return type(outline)([_restore_tensors(value, world, tensors, root) for value in outline])
    return outline
