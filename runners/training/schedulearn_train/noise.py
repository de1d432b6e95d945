"""Measures the noise of gradients, which decides how much a larger batch is worth (Pollux, AdaScale; McCandlish et al. 2018).

The mean gradient of n samples has the expected squared norm ``sqr + var / n``, where ``sqr`` is that of the gradient of all
data and ``var`` the variance of a single sample's. Ranks have different samples, so both follow from their own gradients and
that of the whole batch. A single rank compares the gradients of two steps, whose difference has ``2 var / n``: parameters
hardly change between them (as in AdaptDL). One step per second is measured.
"""

DECAY = 0.95
"""The weight of the mean so far beside a new value."""


class Noise:
    """Running means of measurements; equal on all ranks that observe the same values."""

    def __init__(self) -> None:
        self.sqr_sum = self.var_sum = self.weight = 0.0

    @property
    def known(self) -> bool:
        return self.weight > 0

    @property
    def sqr(self) -> float:
        return max(0.0, self.sqr_sum / self.weight)

    @property
    def var(self) -> float:
        """The variance of a single sample's gradient."""
        return max(0.0, self.var_sum / self.weight)

    @property
    def scale(self) -> float | None:
        """The batch size, in samples, at which half of a gradient is noise; None while unknown."""
        return self.var / self.sqr if self.known and self.sqr > 0 else None

    def observe(self, own: float, inverse: float, whole: float, batch: int) -> None:
        """Add a measurement of several ranks.

        ``own`` is the mean over ranks of the squared norms of their gradients, ``inverse`` the mean of 1 / their samples,
        ``whole`` the squared norm of the whole batch's gradient.
        """
        apart = inverse - 1 / batch
        if apart > 0:
            var = (own - whole) / apart
            self._keep(whole - var / batch, var)

    def observe_single_rank(self, difference: float, whole: float, batch: int) -> None:
        """Add a measurement of a single rank: ``difference`` is the squared norm of the difference of two steps' gradients."""
        self._keep(whole - difference / 2, difference * batch / 2)

    def _keep(self, sqr: float, var: float) -> None:
        self.sqr_sum = DECAY * self.sqr_sum + (1 - DECAY) * sqr
        self.var_sum = DECAY * self.var_sum + (1 - DECAY) * var
        self.weight = DECAY * self.weight + (1 - DECAY)

    def state_dict(self) -> dict[str, float]:
        return {"sqr_sum": self.sqr_sum, "var_sum": self.var_sum, "weight": self.weight}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.sqr_sum, self.var_sum, self.weight = state["sqr_sum"], state["var_sum"], state["weight"]
