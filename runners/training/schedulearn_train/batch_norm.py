"""Batch normalisation of a batch that is split over ranks.

Normally each layer uses mean and variance of its own rank's samples. Their number changes when parts are unequal or ranks
join and leave, and a step is no longer that of a single process. Synchronised layers use mean and variance of the whole
batch (Ioffe and Szegedy, 2015), combined from those of the parts as in Chan, Golub and LeVeque (1979), which loses no digits
where a mean is large. In either case a part that has no variance is normalised by the running statistics.

Torch's own layers stay in the model, which is saved and copied as usual: only their ``forward`` is replaced meanwhile.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from .clock import StepClock
from .loading import Batch
from .world import World

HINT = (
    "BatchNorm uses mean and variance of each rank's own part of a batch. Run(..., sync_batch_norm=True) uses those of the "
    "whole batch, as one process would; False keeps the parts and hides this message"
)


class Statistics:
    """The batch statistics of all layers of a model. ``batch`` is set during a step; outside of steps layers work as usual."""

    def __init__(self, world: World | None = None, clock: StepClock | None = None, synchronised: bool = False) -> None:
        self._world, self._clock, self._synchronised = world, clock, synchronised
        self.batch: Batch | None = None

    def __reduce__(self) -> Any:
        return Statistics, ()  # a copy of a model takes no part in the steps

    @property
    def is_synchronised(self) -> bool:
        return self._synchronised and self._world is not None and self._world.size > 1

    def all_reduce(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        assert self._world is not None and self._clock is not None  # noqa: S101 - there are other ranks
        with self._clock.waiting():
            return self._world.all_reduce(tensor, name)

    def gather_rows(self, own: torch.Tensor, name: str) -> torch.Tensor:
        """Gather the (n,) tensors of all ranks as (ranks, n). Gradients flow back to the rank of each row."""
        rows: torch.Tensor = _GatherRows.apply(own, self, name)
        return rows

    def place_in_table(self, own: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return a (ranks, n) table of zeros with the tensor in this rank's row, and the rank."""
        assert self._world is not None  # noqa: S101
        table = own.new_zeros(self._world.size, len(own))
        table[self._world.rank] = own
        return table, self._world.rank


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, statistics: Statistics, name: str) -> torch.Tensor:
        table, ctx.rank = statistics.place_in_table(own)
        ctx.statistics, ctx.name = statistics, name
        return statistics.all_reduce(table, name)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        summed = ctx.statistics.all_reduce(gradients[0].contiguous(), f"{ctx.name}.gradient")
        return summed[ctx.rank], None, None


def layers(model: nn.Module) -> Iterator[_BatchNorm]:
    """Yield torch's own layers. A subclass with another ``forward`` is left alone."""
    for layer in model.modules():
        if isinstance(layer, _BatchNorm) and type(layer).forward is _BatchNorm.forward:
            yield layer


def use_statistics(model: nn.Module, statistics: Statistics) -> None:
    """Make the layers of the model use these statistics."""
    for number, layer in enumerate(layers(model)):
        layer.forward = partial(_forward, layer, statistics, f"slt.norm.{number}")


def restore_layers(model: nn.Module) -> None:
    """Give the layers of the model their own ``forward`` again."""
    for layer in layers(model):
        layer.__dict__.pop("forward", None)


def _forward(layer: _BatchNorm, statistics: Statistics, name: str, x: torch.Tensor) -> torch.Tensor:
    batch = statistics.batch
    if batch is None or not layer.training:
        return _BatchNorm.forward(layer, x)
    layer._check_input_dim(x)
    values = x.numel() // x.shape[1]  # of each channel
    if statistics.is_synchronised and max(values, batch.together) > 1:
        return _normalise_over_ranks(layer, statistics, name, x, values if batch.own else 0)
    if (batch.own and values > 1) or layer.running_mean is None:
        return _BatchNorm.forward(layer, x)
    return batch_norm(x, layer.running_mean, layer.running_var, layer.weight, layer.bias, eps=layer.eps)


def _normalise_over_ranks(
    layer: _BatchNorm, statistics: Statistics, name: str, x: torch.Tensor, count: int
) -> torch.Tensor:
    """Normalise by the statistics of all ranks.

    This rank's own samples have ``count`` values per channel: 0 if it only repeats samples of another rank.
    """
    channels, others = x.shape[1], [dim for dim in range(x.dim()) if dim != 1]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    var, mean = torch.var_mean(wide, others, correction=0)
    rows = statistics.gather_rows(torch.cat([mean.new_tensor([count]), mean, var]), name)
    counts, means, variances = rows.split([1, channels, channels], dim=1)
    whole = counts.sum()
    mean = (counts * means).sum(0) / whole
    var = (counts * (variances + (means - mean).square())).sum(0) / whole
    _update_running_statistics(layer, mean.detach(), (var * whole / (whole - 1).clamp(min=1)).detach())
    shape = [1, channels] + [1] * (x.dim() - 2)
    scale = torch.rsqrt(var + layer.eps)
    found = (wide - mean.view(shape)) * (scale if layer.weight is None else scale * layer.weight).view(shape)
    return (found if layer.bias is None else found + layer.bias.view(shape)).to(x.dtype)


def _update_running_statistics(layer: _BatchNorm, mean: torch.Tensor, var: torch.Tensor) -> None:
    """Update the running statistics."""
    if layer.running_mean is None or layer.running_var is None or layer.num_batches_tracked is None:
        return
    layer.num_batches_tracked.add_(1)
    share = 1.0 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    for known, new in ((layer.running_mean, mean), (layer.running_var, var)):
        known.lerp_(new.to(known.dtype), share)
