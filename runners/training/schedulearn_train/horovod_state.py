"""What elastic Horovod keeps of a run at each commit, gives back after a failure, and sends to ranks that have just come."""

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import horovod.torch as hvd
from horovod.common.elastic import State

from .sharing import shared

if TYPE_CHECKING:
    from .run import Run


class RunState(State):
    """A copy of all that the run is, as of the last commit."""

    def __init__(self, run: "Run") -> None:
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)
        self._run = run
        self.save()

    def save(self) -> None:
        self._kept: Any = deepcopy(self._run.state())

    def restore(self) -> None:
        self._run.load(deepcopy(self._kept))  # an optimiser goes on to work in what it is given

    def sync(self) -> None:
        self._run.load(shared(self._run.world, self._run.state()))
        self.save()

    def reset(self) -> None:
        """The ring is another one; where ranks only left, nothing is sent."""
        self._run.regroup()
