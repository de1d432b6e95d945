"""One model for ranks that are in step at times, and at their own pace at others."""

from collections.abc import Callable
from typing import Any

from torch import nn


class Either(nn.Module):
    """What a loop calls, and may keep: in step the ``joined`` model, which sums gradients, else the model as it is."""

    def __init__(self, model: nn.Module, joined: nn.Module, apart: Callable[[], bool]) -> None:
        super().__init__()
        self.module = model  # named as DistributedDataParallel does
        self._joined = (joined,)  # in a tuple it is no module of this one, for its parameters are the same
        self._apart = apart

    def forward(self, *args: Any, **named: Any) -> Any:
        return (self.module if self._apart() else self._joined[0])(*args, **named)
