"""The state of a training that the parts of a run share, and its checkpoints."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .allocation import UNLIMITED, split_evenly
from .checkpoints import Checkpoints
from .noise import Noise
from .options import AdaptiveBatch, SyncMode
from .reduction import Losses, Reduction
from .report import reporter
from .sampler import Sampler
from .sharing import share_state
from .world import World

if TYPE_CHECKING:
    from .served import ServerClient


class TrainingState:
    """Model, optimiser, data, and the progress of their training."""

    def __init__(
        self,
        world: World,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Any,
        batch: AdaptiveBatch,
        mode: SyncMode,
        *,
        seed: int = 0,
        micro_batch_size: int | None = None,
        clip_norm: float | None = None,
        reduction: Reduction | None = None,
        checkpoints: Checkpoints | None = None,
        extra_state: Mapping[str, Any] | None = None,
    ) -> None:
        if micro_batch_size is not None and micro_batch_size < 1:
            raise ValueError(f"micro_batch_size must be at least 1, not {micro_batch_size}")
        has_ranks = world.size > 1 or world.elastic
        self.world, self.data, self.mode, self.seed, self.clip_norm = world, data, mode, seed, clip_norm
        self.losses = Losses(reduction, hints=has_ranks and world.rank == 0)
        self.device = torch.device("cuda", world.local_rank) if torch.cuda.is_available() else torch.device("cpu")
        self.module = model.to(self.device)
        self.user_optimizer = optimizer
        self.model, self.optimizer = self.module, optimizer
        """What the training loop calls: they sum gradients over the ranks, once they are wrapped."""
        self.sampler = Sampler(data, seed=seed)
        self.batch, self.batch_size = batch, batch.initial
        self.parts = split_evenly(self.batch_size, world.size)
        """The samples of each rank in a step."""
        self.micro_batch_size = UNLIMITED if micro_batch_size is None else micro_batch_size
        self.micro_batch_sizes = [self.micro_batch_size] * world.size
        """The samples that each rank can compute at once."""
        self.checkpoints = checkpoints or Checkpoints()
        self.extra_state = dict(extra_state or {})
        self.reporter, self.noise = reporter(), Noise()
        self.steps = self.epoch = self.epochs = 0
        self.loss = float("nan")
        self.server_client: ServerClient | None = None
        self.uses_server = mode.uses_server and not mode.is_adaptive
        """Ranks work at their own pace now, and a server decides what each computes."""
        self._saved_at = time.monotonic()

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def size(self) -> int:
        return self.world.size

    @property
    def server(self) -> "ServerClient":
        if self.server_client is None:
            raise RuntimeError(f"mode {self.mode.name} has no parameter server")
        return self.server_client

    @property
    def is_last(self) -> bool:
        """Whether the last epoch has no samples left."""
        return not self.sampler.left and self.sampler.epoch + 1 == self.epochs

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values, not copied."""
        extra = {name: item.state_dict() for name, item in self.extra_state.items()}
        if self.uses_server and (served := self.server.state()):
            return {**served, "also": extra}
        facts = {"sampler": self.sampler.state_dict(), "steps": self.steps, "batch": self.batch_size}
        facts |= {"noise": self.noise.state_dict(), "reduction": self.losses.reduction}
        return {"model": self.module.state_dict(), "optimizer": self.optimizer.state_dict(), "also": extra, **facts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, which other ranks may have saved."""
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        # Schedules refer to the user's optimiser, and loading a state creates new parameter groups.
        self.user_optimizer.param_groups, self.user_optimizer.state = self.optimizer.param_groups, self.optimizer.state
        for name, item in self.extra_state.items():
            item.load_state_dict(state["also"][name])
        self.sampler.load_state_dict(state["sampler"])
        self.steps, self.batch_size, self.epoch = state["steps"], state["batch"], self.sampler.epoch
        self.losses.assume_sum = "reduction" not in state
        if "noise" in state:
            self.noise.load_state_dict(state["noise"])

    def regroup(self) -> None:
        """Split the batch evenly over the ranks, whose number may have changed."""
        self.parts = split_evenly(self.batch_size, self.world.size)

    def seconds_since_save(self, now: float) -> float:
        return now - self._saved_at

    def save(self) -> None:
        """Save a checkpoint, on one rank per checkpoint folder; with a server, on the rank of the server."""
        self._saved_at = time.monotonic()
        if self.rank == 0 if self.uses_server else self.world.writes:
            state = self.state_dict()
            self.checkpoints.save(state["steps"], state)

    def newest(self) -> dict[str, Any] | None:
        """Return the state to begin with: that of the newest checkpoint of any rank, or else of rank 0.

        In an elastic job each rank returns its own checkpoint: a rank that comes later must not wait for the others here,
        and gets their state when it joins them.
        """
        step, state = self.checkpoints.newest() or (-1, None)
        if self.world.elastic:
            return state
        if state is None and self.size > 1 and self.rank == 0:
            step, state = 0, self.state_dict()
        steps = self.world.gather(step)
        newest = max(steps)
        if newest < 0:
            return None
        found: dict[str, Any] = share_state(self.world, state, steps.index(newest), through_cpu=self.uses_server)
        return found
