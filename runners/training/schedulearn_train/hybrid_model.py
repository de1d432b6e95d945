"""One model for ranks that are in lockstep at times and work at their own pace at others."""

from collections.abc import Callable
from typing import Any

from torch import nn


class HybridModel(nn.Module):
    """Calls the ``wrapped`` model, which sums gradients, while ranks are in lockstep, and else the model itself.

    A training loop may keep a reference to it.
    """

    def __init__(self, model: nn.Module, wrapped: nn.Module, uses_server: Callable[[], bool]) -> None:
        super().__init__()
        self.module = model  # the name that DistributedDataParallel uses
        self._wrapped = (wrapped,)  # in a tuple, so that it is no submodule: its parameters are those of the model
        self._uses_server = uses_server

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return (self.module if self._uses_server() else self._wrapped[0])(*args, **kwargs)
