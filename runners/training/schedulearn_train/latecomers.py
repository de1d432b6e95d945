"""Sums the gradients of parameters that the ranks' own reduction leaves out, so that every update is that of the whole batch.

DistributedDataParallel and Horovod sum those that required gradients when ``Run`` was created. A layer that is unfrozen
later, a parameter that is no part of the model, or all of them where the loss does not come from ``run.model``, would
otherwise be updated by each rank for itself.
"""

import numpy as np
import torch

from .world import World

LACKS_SUM = (
    "Parameters begin to train that did not when Run was created, and a rank of this ring has an earlier release of "
    "schedulearn_train, which does not sum their gradients. Bring all nodes to the same release, or let parameters "
    "require gradients before Run is created and compute the loss with run.model."
)


class Latecomers:
    def __init__(self, world: World, optimizer: torch.optim.Optimizer) -> None:
        self._world, self._optimizer = world, optimizer
        self._has_reported = False
        self.all_can = False
        """Every rank is of a release that sums such gradients and compares parameters; known after ``gather``."""

    def gather(self, number: int) -> list[int]:
        """Return what each rank gives, and find out of which releases they are.

        A ring may have ranks of several releases while nodes are upgraded. Earlier ones send a number of Python's, and take
        NumPy's for one.
        """
        numbers = self._world.gather(np.int64(number))
        self.all_can = all(isinstance(each, np.int64) for each in numbers)
        return [int(each) for each in numbers]

    def add_up(self) -> None:
        """After the last ``backward`` of a step. Raises ``RuntimeError`` where another rank would not take part."""
        parameters = self._world.unsummed(self._optimizer)
        if not parameters:
            return
        if not self.all_can:
            raise RuntimeError(LACKS_SUM)
        if not self._has_reported and self._world.rank == 0:
            print(  # noqa: T201
                f"The gradients of {len(parameters)} parameters are summed over the ranks after the backward pass, not during "
                "it: they did not require gradients when Run was created, or the loss does not come from run.model"
            )
        self._has_reported = True
        self._world.add_up(parameters)
