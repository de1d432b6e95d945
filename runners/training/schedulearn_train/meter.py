"""Measures the gradients of a rank, for ``noise.py``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn


class Reading(NamedTuple):
    """Measurements of one step."""

    own: float
    """The squared norm of this rank's own gradient, 0 if it had no samples."""
    inverse: float
    """1 / the number of its samples, or 0."""
    difference: float
    """The squared norm of the difference of two steps' gradients, measured where there is one rank; else 0."""
    whole: float
    """The squared norm of the whole batch's gradient."""


NO_READING = Reading(0.0, 0.0, 0.0, 0.0)


class Meter:
    """Measures one rank's gradients, in the steps for which ``measure_own`` and ``measure_whole`` are called."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        self._all, self._parameters = list(parameters), list[nn.Parameter]()
        """All parameters, and those that require gradients in the step that is measured."""
        self._own: torch.Tensor | None = None
        self._before: tuple[int, list[torch.Tensor]] = (-1, [])
        """The number of the last measured step, and its gradients."""
        self._reading = NO_READING

    @contextmanager
    def measure_own(self) -> Iterator[None]:
        """Measure, in a context around ``backward``, this rank's own gradients before they are summed."""
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

    def measure_whole(self, step: int, samples: int, total: int, is_single_rank: bool, scale: float) -> None:
        """Measure the summed gradients, before the update of this ``step``.

        The loss was divided by ``total`` and multiplied by ``scale``. ``samples`` are those of this rank.
        A single rank also measures the difference to the step before.
        """
        own, self._own = self._own, None
        if own is None:
            return
        gradients = [each.grad.detach() for each in self._parameters if each.grad is not None]
        whole = float(sum(each.float().square().sum() for each in gradients))
        difference = self._since_before(step, gradients) if is_single_rank else 0.0
        length = float(own) * (total / (scale * max(1, samples))) ** 2
        self._reading = Reading(length, 1 / samples, difference, whole) if samples else Reading(0.0, 0.0, 0.0, whole)

    def _since_before(self, step: int, gradients: list[torch.Tensor]) -> float:
        (last, before), self._before = self._before, (step, [each.clone() for each in gradients])
        if last != step - 1 or len(before) != len(gradients):
            return 0.0
        pairs: Any = zip(before, gradients, strict=True)
        return float(sum((new - old).float().square().sum() for old, new in pairs))

    def read(self) -> Reading:
        """Return the reading of the last measured step since the last call, or zeros."""
        reading, self._reading = self._reading, NO_READING
        return reading
