"""Scales the learning rate when the batch size changes."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import sqrt
from typing import Any, Literal

Rule = Literal["none", "linear", "sqrt", "adascale"]


def factor(rule: Rule, batch: int, base_batch: int, noise_scale: float | None = None) -> float:
    """Return the factor for a learning rate that was chosen for ``base_batch`` samples.

    ``linear``: for SGD (Goyal et al. 2017). ``sqrt``: for Adam and similar (Krizhevsky 2014, Malladi et al. 2022).
    ``adascale``: the gain of AdaScale SGD (Johnson et al. 2020), which is linear while gradients are noisy and 1 when
    they are not: ``(noise + base) / (noise + batch) * batch / base``, with the gradient noise scale in samples
    (the gradients' variance divided by the square of their mean); ``linear`` while that is unknown.
    """
    if batch <= 0 or base_batch <= 0:
        raise ValueError(f"a batch has at least one sample, not {min(batch, base_batch)}")
    times = batch / base_batch
    if rule == "none":
        return 1.0
    if rule == "sqrt":
        return sqrt(times)
    if rule == "adascale" and noise_scale is not None:
        return (noise_scale + base_batch) / (noise_scale + batch) * times
    return times


@contextmanager
def scaled(optimizer: Any, times: float) -> Iterator[None]:
    """Multiply the optimizer's learning rates within this context."""
    usual = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * times
    yield
    for group, rate in zip(optimizer.param_groups, usual, strict=True):
        group["lr"] = rate
