"""How the learning rate follows when the batch changes."""

from math import sqrt
from typing import Literal

Rule = Literal["none", "linear", "sqrt", "adascale"]


def factor(rule: Rule, batch: int, base_batch: int, noise_scale: float | None = None) -> float:
    """What to multiply the learning rate by that was chosen for ``base_batch`` samples.

    ``linear``: for SGD (Goyal et al. 2017). ``sqrt``: for Adam and its kin (Krizhevsky 2014, Malladi et al. 2022).
    ``adascale``: the gain of AdaScale SGD (Johnson et al. 2020), which is linear while gradients are noisy and 1 when
    they are not: ``(noise + base) / (noise + batch) * batch / base``, with the gradient noise scale in samples
    (the gradients' variance by their mean's square); ``linear`` while that is not known.
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
