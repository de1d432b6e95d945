"""How noisy the gradients are: what tells how much a larger batch is worth (Pollux, AdaScale; McCandlish et al. 2018).

The mean gradient of n samples has the expected squared length ``sqr + var / n``, where ``sqr`` belongs to the gradient of
all data and ``var`` to a single sample. Ranks have different samples, so their own gradients and that of the whole batch
tell both. A rank that is alone compares the gradients of two steps, whose difference has ``2 var / n``: parameters
hardly change between them (as AdaptDL does). A step in a second is looked at, not each.
"""

KEPT = 0.95
"""What the mean so far counts beside a new value."""


class Noise:
    """Means of what was measured; the same on all ranks that were told the same."""

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
        """Of a single sample."""
        return max(0.0, self.var_sum / self.weight)

    @property
    def scale(self) -> float | None:
        """In samples: the batch at which half of a gradient is noise. None while it is not known."""
        return self.var / self.sqr if self.known and self.sqr > 0 else None

    def observe(self, own: float, inverse: float, whole: float, batch: int) -> None:
        """``own``: the mean over ranks of their gradients' squared lengths, ``inverse``: of 1 / their samples, ``whole``:
        the squared length of the batch's gradient."""
        apart = inverse - 1 / batch
        if apart > 0:
            var = (own - whole) / apart
            self._keep(whole - var / batch, var)

    def observe_alone(self, difference: float, whole: float, batch: int) -> None:
        """``difference``: the squared length of that between the gradients of two steps."""
        self._keep(whole - difference / 2, difference * batch / 2)

    def _keep(self, sqr: float, var: float) -> None:
        self.sqr_sum = KEPT * self.sqr_sum + (1 - KEPT) * sqr
        self.var_sum = KEPT * self.var_sum + (1 - KEPT) * var
        self.weight = KEPT * self.weight + (1 - KEPT)

    def state_dict(self) -> dict[str, float]:
        return {"sqr_sum": self.sqr_sum, "var_sum": self.var_sum, "weight": self.weight}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.sqr_sum, self.var_sum, self.weight = state["sqr_sum"], state["var_sum"], state["weight"]
