"""Measures the gradients of a rank, for ``noise.py``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn


class Reading(NamedTuple):
    own: float
    """The squared length of this rank's own gradient, 0 if it had no samples."""
    inverse: float
    """1 / its samples, or 0."""
    difference: float
    """The squared length of that between the gradients of two steps, where a rank is alone; else 0."""
    whole: float
    """The squared length of the whole batch's gradient."""


NOTHING = Reading(0.0, 0.0, 0.0, 0.0)


class Meter:
    """Measures one rank's gradients in the steps that it is told to."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        self._all, self._parameters = list(parameters), list[nn.Parameter]()
        """Those of the second list require gradients in the step that is measured."""
        self._own: torch.Tensor | None = None
        self._before: tuple[int, list[torch.Tensor]] = (-1, [])
        """The number of a step, and its gradients."""
        self._reading = NOTHING

    @contextmanager
    def own(self) -> Iterator[None]:
        """Around ``backward``: gradients as this rank alone has them, before anybody sums."""
        lengths: list[torch.Tensor] = []
        self._parameters = [each for each in self._all if each.requires_grad]

        def add(gradient: torch.Tensor) -> None:
            lengths.append(gradient.detach().float().square().sum())

        handles = [each.register_hook(add) for each in self._parameters]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        self._own = torch.stack(lengths).sum() if lengths else None

    def whole(self, step: int, samples: int, total: int, alone: bool, scale: float) -> None:
        """After the sum, before the update with this number. The loss was divided by ``total`` and multiplied by
        ``scale``; ``samples`` are this rank's."""
        own, self._own = self._own, None
        if own is None:
            return
        gradients = [each.grad.detach() for each in self._parameters if each.grad is not None]
        whole = float(sum(each.float().square().sum() for each in gradients))
        difference = self._since_before(step, gradients) if alone else 0.0
        length = float(own) * (total / (scale * max(1, samples))) ** 2
        self._reading = Reading(length, 1 / samples, difference, whole) if samples else Reading(0.0, 0.0, 0.0, whole)

    def _since_before(self, step: int, gradients: list[torch.Tensor]) -> float:
        (last, before), self._before = self._before, (step, [each.clone() for each in gradients])
        if last != step - 1 or len(before) != len(gradients):
            return 0.0
        pairs: Any = zip(before, gradients, strict=True)
        return float(sum((new - old).float().square().sum() for old, new in pairs))

    def read(self) -> Reading:
        """Of the last such step since the last reading; zeros without one."""
        reading, self._reading = self._reading, NOTHING
        return reading
