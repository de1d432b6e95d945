"""The state of a run that elastic Horovod keeps at each commit, restores after a failure, and sends to ranks that join."""

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import horovod.torch as hvd
from horovod.common.elastic import State

from .sharing import share_state

if TYPE_CHECKING:
    from .run import Run


class RunState(State):
    """A copy of the state of a run at the last commit."""

    def __init__(self, run: "Run") -> None:
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)
        self._run = run
        self.save()

    def save(self) -> None:
        self._kept: Any = deepcopy(self._state())

    def restore(self) -> None:
        self._load(deepcopy(self._kept))  # an optimiser modifies the state that it is given

    def sync(self) -> None:
        self._load(share_state(self._run.world, self._state()))
        self.save()

    def _state(self) -> dict[str, Any]:
        """Return the run's state with the names of the layers that are trained: rank 0 may have frozen or unfrozen some."""
        trained = [name for name, each in self._run.module.named_parameters() if each.requires_grad]
        return {**self._run.state_dict(), "trained": trained}

    def _load(self, state: Any) -> None:
        self._run.load_state_dict(state)
        if "trained" in state:  # else rank 0 runs an earlier release
            for name, each in self._run.module.named_parameters():
                each.requires_grad_(name in state["trained"])

    def reset(self) -> None:
        """Handle a change of the rank group. Where ranks only left, no state is sent."""
        self._run.regroup()
