"""Keras in a single process or under Horovod, elastic or not: reports progress, stops on request, resumes from a checkpoint.

    model.compile(optimizer=hvd.DistributedOptimizer(Adam(1e-3)), loss=..., metrics=["accuracy"])
    training = Training(model, epochs=20, batch_size=32)         # resumes from a checkpoint, the same on all ranks

    @training.elastic                                            # called again when ranks have joined or left
    def train():
        mine = data.shard(training.size, training.rank).batch(32)
        model.fit(mine, initial_epoch=training.epoch, epochs=20, callbacks=training.callbacks(), verbose=0)
    train()

About once a second all ranks meet at a sync point, as in ``run.py``. An interrupted epoch starts again, from the weights that
were reached: Keras does not report which samples it has used.
"""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from tensorflow import keras

from . import launched, stopping
from .checkpoints import ArrayCheckpoints
from .renamed import OldAttribute, accepts_old_keras_keywords
from .report import reporter
from .stopping import Stopped
from .sync_points import steps_between

Result = TypeVar("Result")


class Training:
    """The training of a compiled model that knows its inputs, with its progress and checkpoints.

    ``epochs`` is the number of all epochs, ``batch_size`` the samples of each rank in a step (0: not reported).

    >>> import numpy as np
    >>> from tensorflow import keras
    >>> from schedulearn_train.keras import Training
    >>> x, y = np.ones((8, 2)), np.zeros((8, 1))
    >>> model = keras.Sequential([keras.Input(shape=(2,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer="sgd", loss="mse")
    >>> training = Training(model, epochs=2, batch_size=4)
    >>> @training.elastic
    ... def train():
    ...     first, callbacks = training.epoch, training.callbacks()
    ...     model.fit(x, y, batch_size=4, initial_epoch=first, epochs=2, callbacks=callbacks, verbose=0)
    >>> train()
    >>> training.steps
    4
    """

    batch = OldAttribute("batch_size")
    checkpoint_seconds = OldAttribute("checkpoints.every_seconds")

    @accepts_old_keras_keywords
    def __init__(
        self,
        model: Any,
        *,
        epochs: int,
        batch_size: int = 0,
        checkpoints: ArrayCheckpoints | None = None,
    ) -> None:
        if not model.built or getattr(model, "optimizer", None) is None:
            raise ValueError("the model must be compiled and know its inputs: begin it with keras.Input(shape=...)")
        stopping.listen()
        self.model, self.epochs, self.batch_size = model, epochs, batch_size
        self.checkpoints = checkpoints or ArrayCheckpoints()
        self.steps = self._epoch = 0
        self._saved_at = time.monotonic()
        self._hvd, self._plain = _horovod()
        self._state: Any = None
        model.optimizer.build(model.trainable_variables)
        self._resume()

    @property
    def rank(self) -> int:
        return 0 if self._hvd is None else int(self._hvd.rank())

    @property
    def size(self) -> int:
        return 1 if self._hvd is None else int(self._hvd.size())

    @property
    def is_elastic(self) -> bool:
        """Whether ranks may join and leave while the program runs."""
        return self._hvd is not None and launched.by_elastic_horovod()

    @property
    def epoch(self) -> int:
        """The epoch to begin with, counted from 0."""
        return self._epoch if self._state is None else int(self._state.epoch)

    def callbacks(self) -> list[Any]:
        """Return the callbacks for ``fit``. Callbacks that need metrics of all ranks come after them."""
        means = [] if self._hvd is None else [self._hvd.callbacks.MetricAverageCallback()]
        return [*means, _SyncPoints(self)]

    def elastic(self, train: Callable[..., Result]) -> Callable[..., Result]:
        """Decorate ``train`` so that it is called again, from the last commit, when ranks have joined or left."""

        @functools.wraps(train)
        def run(*args: Any, **kwargs: Any) -> Result:
            work = functools.partial(train, *args, **kwargs)
            result: Result
            if self.is_elastic:
                self._state = self._hvd.elastic.KerasState(self.model, epoch=self._epoch, steps=self.steps)
                result = self._hvd.elastic.run(lambda state: work())(self._state)
            else:
                result = work()
            self.save()
            return result

        return run

    # --- progress and state

    def reached(self, epoch: int) -> None:
        """Set the next epoch, which together with the steps goes into checkpoints and to ranks that join."""
        self._epoch = epoch
        if self._state is not None:
            self._state.epoch, self._state.steps = epoch, self.steps

    def commit(self) -> None:
        """Mark the state to continue from. Ranks may join or leave here, and then this does not return."""
        if self._state is not None:
            self._state.commit()

    def save(self) -> None:
        self._saved_at = time.monotonic()
        if self.rank == 0:
            self.checkpoints.save(self.steps, self.state())

    @property
    def save_is_due(self) -> bool:
        return time.monotonic() - self._saved_at >= self.checkpoints.every_seconds

    def state(self) -> dict[str, Any]:
        arrays = [*self.model.get_weights(), *(np.asarray(each) for each in self.model.optimizer.variables)]
        return {"arrays": arrays, "facts": {"epoch": self.epoch, "steps": self.steps}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        count = len(self.model.weights)
        self.model.set_weights(state["arrays"][:count])
        for variable, value in zip(self.model.optimizer.variables, state["arrays"][count:], strict=True):
            variable.assign(value)
        self._epoch, self.steps = state["facts"]["epoch"], state["facts"]["steps"]

    def _resume(self) -> None:
        """Resume from the newest checkpoint that any rank has.

        In an elastic job each rank takes its own: a rank that comes later gets the others' state when it joins them.
        """
        step, state = self.checkpoints.newest() or (-1, None)
        if self._hvd is not None and not self.is_elastic:
            steps = self._plain.allgather_object(step)
            root = steps.index(max(steps))
            step, state = self._plain.broadcast_object((step, state or self.state()), root_rank=root)
        if state is not None:
            self.load(state)
        if step >= 0 and self.rank == 0:
            print(f"Resumed from step {self.steps}, in epoch {self.epoch + 1}")  # noqa: T201

    def sum(self, values: list[float]) -> list[float]:
        """Return the sums over all ranks."""
        if self._hvd is None:
            return values
        summed = self._plain.allreduce(tf.constant(values, tf.float64), name="slt.keras.sum", op=self._plain.Sum)
        return [float(value) for value in summed.numpy()]


class _SyncPoints(keras.callbacks.Callback):
    """Makes the decisions that all ranks share, and the reports of rank 0."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._training = training
        self._epoch = 0
        self._next_sync, self._synced_at, self._synced_step = 0, 0.0, 0
        self._fresh = True
        self._stopping = False
        """All ranks stop after the callbacks of this epoch."""

    def on_train_begin(self, logs: Any = None) -> None:
        training = self._training
        if training._state is not None:
            training.steps = int(training._state.steps)
        self._next_sync, self._fresh = training.steps + 1, True
        self._synced_at, self._synced_step = time.monotonic(), training.steps

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._stopping:
            raise Stopped(0)
        self._epoch = epoch
        self._training.reached(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._training.steps += 1
        last = batch + 1 == self.params.get("steps")
        if self._training.steps >= self._next_sync or last:
            self._sync(batch, logs or {}, last)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        training = self._training
        training.reached(epoch + 1)
        if training.rank == 0:
            for name, value in (logs or {}).items():
                curve = f"validation/{name.removeprefix('val_')}" if name.startswith("val_") else f"train/{name}"
                reporter().metric(curve, float(value), training.steps)
            reporter().flush()
        if not self._stopping:
            training.commit()

    def _sync(self, batch: int, logs: Mapping[str, Any], last: bool) -> None:
        """Decide together with all ranks. ``last`` is set for the last batch of an epoch."""
        training, now = self._training, time.monotonic()
        mine = (now - self._synced_at) / max(1, training.steps - self._synced_step)
        stops, seconds, saves = training.sum(
            [float(stopping.should_stop()), mine, float(training.rank == 0 and training.save_is_due)]
        )
        seconds /= training.size
        if training.rank == 0 and not self._fresh and reporter().due(self._epoch + 1 == training.epochs and last):
            self._report(batch, seconds, logs)
        self._synced_at, self._synced_step, self._fresh = now, training.steps, False
        self._next_sync = training.steps + steps_between(seconds)
        training.reached(self._epoch + last)
        self._stopping = stops == training.size if training.is_elastic else stops > 0
        if self._stopping or saves:
            training.save()
        if last:  # commits and stops at the end of the epoch, after its validation
            return
        if self._stopping:
            raise Stopped(0)
        training.commit()

    def _report(self, batch: int, seconds: float, logs: Mapping[str, Any]) -> None:
        training, in_epoch = self._training, self.params.get("steps")
        done = (self._epoch + (batch + 1) / in_epoch) / training.epochs if in_epoch else None
        whole = training.batch_size * training.size
        reporter().step(
            step=training.steps,
            epoch=self._epoch,
            done=None if done is None else min(1.0, done),
            batch=whole,
            ranks=training.size,
            seconds=seconds,
            loss=float(logs.get("loss", float("nan"))),
            batches=(whole, whole, whole),
        )
        reporter().flush()


def _horovod() -> tuple[Any, Any]:
    """Return Horovod for Keras and Horovod for TensorFlow if Horovod started this rank, else None for both."""
    if not launched.by_horovod():
        return None, None
    import horovod.tensorflow as plain
    import horovod.tensorflow.keras as hvd

    if not hvd.is_initialized():
        hvd.init()
    return hvd, plain
