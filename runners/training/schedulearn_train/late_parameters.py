"""Sums the gradients of parameters that DistributedDataParallel and Horovod leave out, so that each update uses the whole batch.

They sum the gradients of parameters that required some when ``Run`` was created. Without this module each rank would update
by itself a layer that is unfrozen later, a parameter that is no part of the model, or, where the loss does not come from
``run.model``, all parameters.
"""

import numpy as np
import torch

from .world import World

LACKS_SUM = (
    "Parameters begin to train that did not when Run was created, and another rank runs an earlier release of "
    "schedulearn_train, which does not sum their gradients. Bring all nodes to the same release, or let parameters "
    "require gradients before Run is created and compute the loss with run.model."
)


class LateParameters:
    """The parameters that began to require gradients after ``Run`` was created, and others that ``backward`` does not sum."""

    def __init__(self, world: World, optimizer: torch.optim.Optimizer) -> None:
        self._world, self._optimizer = world, optimizer
        self._has_reported = False
        self.all_ranks_can_sum = False
        """Every rank runs a release that sums such gradients and compares parameters; set by ``gather``."""

    def gather(self, number: int) -> list[int]:
        """Return the number that each rank passes, and find out whether a rank runs an earlier release.

        While nodes are upgraded, ranks of several releases may train together. Earlier ones send a Python integer, this one
        a NumPy integer, which they accept.
        """
        numbers = self._world.gather(np.int64(number))
        self.all_ranks_can_sum = all(isinstance(each, np.int64) for each in numbers)
        return [int(each) for each in numbers]

    def sum_gradients(self) -> None:
        """Sum such gradients, after the last ``backward`` of a step. Raises ``RuntimeError`` if another rank cannot."""
        parameters = self._world.unreduced(self._optimizer)
        if not parameters:
            return
        if not self.all_ranks_can_sum:
            raise RuntimeError(LACKS_SUM)
        if not self._has_reported and self._world.rank == 0:
            print(  # noqa: T201
                f"The gradients of {len(parameters)} parameters are summed over the ranks after the backward pass, not during "
                "it: they did not require gradients when Run was created, or the loss does not come from run.model"
            )
        self._has_reported = True
        self._world.reduce(parameters)
