"""An ordinary PyTorch loop that may be stopped, moved and resized at any time.

About once a second all ranks meet at a sync point (``coordination.py``) and decide together whether to stop, whether a
checkpoint is due, and how large the batch is and how it is split.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from . import batch_norm, stopping
from .checkpoints import Checkpoints
from .clock import StepClock
from .coordination import Coordinator
from .divergence import Comparison
from .hybrid_model import HybridModel
from .loading import Batch, Loader
from .lockstep import LockstepUpdates
from .noise import Noise
from .options import AdaptiveBatch, Mode, SyncMode, chosen_mode
from .reduction import Reduction
from .renamed import OldAttributes, accepts_old_keywords
from .served import ServerClient
from .shards import Channels
from .sharing import share_state
from .stopping import Stopped
from .training_state import TrainingState
from .world import World, find_world

Result = TypeVar("Result")


class Run(OldAttributes):
    """The training of one model: joins the other ranks and resumes from the newest checkpoint.

    Args:
        batch_size: samples of a step over all ranks together; ``AdaptiveBatch`` lets the scheduler change it.
        mode: how ranks make updates together: ``"bsp"``, or another mode (docs/training/unequal-workers.md); ``SyncMode`` has
            options.
        micro_batch_size: samples that this rank can compute at once. Larger parts are computed in several passes, and
            ``step`` returns False until the last.
        clip_norm: the largest norm of the gradient of the whole batch.
        reduction: whether losses are means or sums over the samples: ``"mean"`` or ``"sum"``. Detected by default.
        seed: decides the order of samples.
        num_workers: processes that load batches ahead.
        checkpoints: where checkpoints are, how many are kept, and how often they are saved.
        extra_state: further objects with a ``state_dict`` for checkpoints, by name: learning-rate schedules, a gradient
            scaler.
        sync_batch_norm: whether BatchNorm layers use the statistics of the whole batch. By default they do not, and several
            ranks print a message.
        check_divergence: whether to compare the ranks' parameters, and to end with ``RanksDivergedError`` if they differ.
        world: the ranks; found by default.

    Gives the same result with any number of ranks:

    >>> import torch
    >>> from schedulearn_train import Run
    >>> data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.zeros(8, 1))
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> run = Run(model, optimizer, data, batch_size=4)
    >>> @run.elastic
    ... def train():
    ...     for epoch in run.epochs(3):
    ...         for x, y in run.batches():
    ...             run.step(torch.nn.functional.mse_loss(run.model(x), y))
    >>> train()
    >>> run.steps
    6
    """

    @accepts_old_keywords
    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Any,
        *,
        batch_size: int | AdaptiveBatch,
        mode: Mode | SyncMode = "bsp",
        micro_batch_size: int | None = None,
        clip_norm: float | None = None,
        reduction: Reduction | None = None,
        seed: int = 0,
        num_workers: int = 0,
        checkpoints: Checkpoints | None = None,
        extra_state: Mapping[str, Any] | None = None,
        sync_batch_norm: bool | None = None,
        check_divergence: bool = True,
        world: World | None = None,
    ) -> None:
        sync_mode = chosen_mode(mode)
        if sync_batch_norm and sync_mode.uses_server:
            raise ValueError(
                f"sync_batch_norm needs ranks that compute in lockstep, as in bsp and bsp_balanced, and not mode "
                f"{sync_mode.name!r}. Leave it out, or use layers that normalise each sample by itself, such as GroupNorm"
            )
        batch = (
            batch_size if isinstance(batch_size, AdaptiveBatch) else AdaptiveBatch(batch_size, batch_size, batch_size)
        )
        stopping.listen()
        self._training = training = TrainingState(
            world or find_world(),
            model,
            optimizer,
            data,
            batch,
            sync_mode,
            seed=seed,
            micro_batch_size=micro_batch_size,
            clip_norm=clip_norm,
            reduction=reduction,
            checkpoints=checkpoints,
            extra_state=extra_state,
        )
        self._loader = Loader(data, num_workers, training.device)
        self._current: Batch | None = None
        clock = StepClock(training.device.type == "cuda")
        self._statistics = batch_norm.Statistics(training.world, clock, bool(sync_batch_norm))
        batch_norm.use_statistics(training.module, self._statistics)
        if sync_mode.uses_server:
            channels = Channels(*(training.world.open_channel() for _ in Channels._fields))
            training.server_client = ServerClient(training, channels, self._return_to_lockstep)
        if not training.uses_server:
            training.model, training.optimizer = training.world.wrap(training.module, optimizer, clock.computed)
        optimizer.param_groups = training.optimizer.param_groups  # the user may add some later
        self._updates = LockstepUpdates(training, clock, self._statistics)
        comparison = Comparison(training.world, training.module, training.optimizer, data, check_divergence)
        self._coordinator = Coordinator(training, self._updates, clock, comparison)
        if sync_mode.is_adaptive:
            training.model = HybridModel(training.module, training.model, lambda: training.uses_server)
        if sync_batch_norm is None and self.size > 1 and self.rank == 0 and any(batch_norm.layers(training.module)):
            print(batch_norm.HINT)  # noqa: T201
        state = training.newest()
        if state is not None:
            self.load_state_dict(state)
            if self.steps and self.rank == 0:
                print(f"Resumed from step {self.steps}, in epoch {training.epoch + 1}")  # noqa: T201

    # --- the training loop

    def elastic(self, train: Callable[..., Result]) -> Callable[..., Result]:
        """Decorate ``train`` so that it is called again, from the last commit, when ranks have joined or left.

        >>> @run.elastic
        ... def train():
        ...     return run.size
        >>> train()
        1
        """

        @functools.wraps(train)
        def run(*args: Any, **kwargs: Any) -> Result:
            try:
                result = self.world.run_elastic(self, functools.partial(train, *args, **kwargs))
            except Stopped:
                self._close()
                raise
            self.save()
            self._close()
            return result

        return run

    def _close(self) -> None:
        self._training.model = self._training.module
        batch_norm.restore_layers(self._training.module)
        self.world.close()

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of the epochs that are left, of ``count``.

        >>> for epoch in run.epochs(2):
        ...     for x, y in run.batches():
        ...         finished = run.step(loss(run.model(x), y))
        ...     print("epoch", epoch, "steps", run.steps)
        epoch 0 steps 2
        epoch 1 steps 4
        """
        training = self._training
        training.epochs = count
        training.micro_batch_sizes = self._updates.late_parameters.gather(training.micro_batch_size)
        if training.uses_server:
            training.server.begin(count)
        for epoch in range(training.sampler.epoch, count):
            training.epoch = epoch
            yield epoch
            if not training.uses_server:
                training.sampler.start(epoch + 1)
            elif not training.server.is_over(epoch):
                raise RuntimeError(f"epoch {epoch} is not over: do not leave the loop over run.batches() early")
        training.sampler.start(count)

    def batches(self) -> Iterator[Any]:
        """Yield this rank's parts of the batches that are left in this epoch, on its device, as a DataLoader would.

        A part of more than ``micro_batch_size`` samples comes in several pieces. Each needs a ``step``.

        >>> x, y = next(run.batches())
        >>> len(x)
        4
        """
        self._training.model.train()
        for batch in self._epoch_batches(self._training.epoch):
            self._current = self._statistics.batch = batch
            if not self._training.uses_server:
                self._updates.begin_pass(batch)
            yield batch.content
            if self._current is not None:
                raise RuntimeError("each batch needs its step: call run.step(loss) once in the loop over run.batches()")

    def _epoch_batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, in which ranks may leave lockstep and return to it."""
        training = self._training
        by_server = None
        while by_server is not training.uses_server:
            by_server = training.uses_server
            in_lockstep = self._loader.batches(
                training.sampler, lambda: training.parts, training.micro_batch_sizes, training.rank
            )
            for batch in training.server.batches(epoch) if by_server else in_lockstep:
                yield batch
                if by_server is not training.uses_server:
                    break

    def step(self, loss: torch.Tensor, scaler: Any = None) -> bool:
        """Make an update by the whole batch. ``loss`` is a scalar: the mean over this rank's samples, or their sum.

        Returns False while more passes of this batch follow, and the update is not made yet.

        >>> for x, y in run.batches():
        ...     print(run.step(loss(run.model(x), y)))
        True
        True
        """
        batch, self._current = self._current, None
        if batch is None:
            raise RuntimeError("run.step(loss) belongs into the loop over run.batches(), once for each batch")
        if loss.ndim:
            raise ValueError(
                f"run.step(loss) takes one number, not {tuple(loss.shape)}: use loss.mean(), or loss.sum()"
            )
        training = self._training
        if training.server_client is not None and scaler is not None:
            raise ValueError(f"mode {self.mode} does not support a gradient scaler: use bfloat16, which needs none")
        if training.uses_server:
            training.server.step(loss, batch)
            self._statistics.batch = None
            return batch.is_last
        finished = self._updates.step(loss, batch, scaler, self._coordinator.should_measure())
        if finished:
            self._coordinator.after_step()
        return finished

    # --- state

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state of the training, as checkpoints have it: tensors and plain values, not copied.

        >>> run.state_dict()["steps"]
        0
        """
        return self._training.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, which may come from another number of ranks.

        >>> run.load_state_dict({**run.state_dict(), "steps": 100})
        >>> run.steps
        100
        """
        self._training.load_state_dict(state)
        self.regroup()

    def save(self) -> None:
        """Save a checkpoint now, on one rank per checkpoint folder. Usually this happens by itself.

        >>> run.save()
        >>> run.checkpoints.steps()
        [0]
        """
        self._training.save()

    def regroup(self) -> None:
        """Start with another rank group: split the batch evenly and learn the speeds of the ranks again.

        The library calls this when ranks have joined or left.

        >>> run.regroup()
        >>> run.parts
        (4,)
        """
        self._current = self._statistics.batch = None
        self._training.regroup()
        self._coordinator.restart()

    def _return_to_lockstep(self) -> None:
        """Continue without the server on all ranks, from its state. Schedules take the state that they have on rank 0."""
        training = self._training
        server = training.server.server
        state = share_state(training.world, {**training.state_dict(), "parts": server.parts} if server else None)
        training.uses_server = False
        self.load_state_dict(state)
        training.parts = state["parts"]

    # --- what loops may use

    @property
    def model(self) -> nn.Module:
        """The model to call in the loop: it sums gradients over the ranks. A loop may set it, as to a compiled one.

        >>> run.model(torch.ones(3, 2)).shape
        torch.Size([3, 1])
        """
        return self._training.model

    @model.setter
    def model(self, model: nn.Module) -> None:
        self._training.model = model

    @property
    def module(self) -> nn.Module:
        """The user's own model, for validation and for saving it.

        >>> run.module is model
        True
        """
        return self._training.module

    @property
    def optimizer(self) -> Any:
        """The optimiser that sums gradients over the ranks; ``step`` calls it.

        >>> run.optimizer.param_groups is optimizer.param_groups
        True
        """
        return self._training.optimizer

    @property
    def world(self) -> World:
        """The rank group, with operations such as ``gather`` and ``share``.

        >>> run.world.gather("hello")
        ['hello']
        """
        return self._training.world

    @property
    def rank(self) -> int:
        """The number of this rank, from 0.

        >>> run.rank
        0
        """
        return self._training.world.rank

    @property
    def size(self) -> int:
        """The number of ranks.

        >>> run.size
        1
        """
        return self._training.world.size

    @property
    def device(self) -> torch.device:
        """The device of this rank.

        >>> run.device.type in ("cpu", "cuda")
        True
        """
        return self._training.device

    @property
    def mode(self) -> Mode:
        """The name of the mode, which the job's form may have chosen.

        >>> run.mode
        'bsp'
        """
        return self._training.mode.name

    @property
    def steps(self) -> int:
        """The number of updates so far, including those before a restart.

        >>> run.steps
        0
        """
        return self._training.steps

    @property
    def batch_size(self) -> int:
        """The samples of a step over all ranks, which the scheduler may have chosen.

        >>> run.batch_size
        4
        """
        return self._training.batch_size

    @property
    def parts(self) -> tuple[int, ...]:
        """The samples of each rank in the next batches. A loop may set it.

        >>> run.parts
        (4,)
        """
        return self._training.parts

    @parts.setter
    def parts(self, parts: tuple[int, ...]) -> None:
        self._training.parts = parts

    @property
    def loss(self) -> float:
        """The mean loss over all ranks at the last sync point; with a parameter server, that of this rank's last samples.

        >>> run.loss
        nan
        """
        return self._training.loss

    @property
    def noise(self) -> Noise:
        """The measured noise of the gradients.

        >>> run.noise.known
        False
        """
        return self._training.noise

    @property
    def checkpoints(self) -> Checkpoints:
        """Where checkpoints are saved.

        >>> run.checkpoints.newest() is None
        True
        """
        return self._training.checkpoints
