"""An ordinary PyTorch loop that may be stopped, moved and resized at any time, in five lines.

    run = Run(model, optimizer, data, batch=256)                 # joins the other ranks, goes on from a checkpoint

    @run.elastic                                                 # called again when ranks have come or gone
    def train():
        for epoch in run.epochs(20):
            for x, y in run.batches():                           # this rank's part of each batch
                run.step(cross_entropy(run.model(x), y, reduction="sum"))
    train()

About once a second all ranks *look up* together: whether they have to stop, whether a checkpoint is due, how to split
the batch, how large it shall be. What one of them knows is summed over all, and each decides the same from the sums.
"""

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from . import stopping
from .allocation import UNLIMITED, Worker, even
from .balance import Kind, Speed, rebalanced
from .checkpoints import Checkpoints
from .clock import StepClock
from .loading import Batch, Loader
from .rates import Rule, factor
from .sampler import Sampler
from .sharing import shared
from .world import World, find_world

LOOK_SECONDS = 1.0
MOST_STEPS = 1000
"""Between two looks."""
Mode = Literal["bsp", "bsp_balanced"]
Result = TypeVar("Result")


class Stopped(SystemExit):  # noqa: N818
    """This job has to go. Its checkpoint is written; the program ends with 0."""


class Run:
    """One training: model, optimiser, data, and where all of it stands.

    ``batch`` is that of a step over all ranks together. Losses given to ``step`` are *sums* over the samples, not means:
    only then does a step come to the same whatever the parts are. ``also`` are further things with ``state_dict`` that
    belong to the training: learning-rate schedules, a gradient scaler.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Any,
        *,
        batch: int,
        mode: Mode = "bsp",
        seed: int = 0,
        workers: int = 0,
        rate_rule: Rule = "none",
        predict: Kind = "smoothing",
        most_samples: int = UNLIMITED,
        clip_norm: float | None = None,
        checkpoints: Checkpoints | None = None,
        checkpoint_seconds: float = 60.0,
        also: Mapping[str, Any] | None = None,
        world: World | None = None,
    ) -> None:
        stopping.listen()
        self.world = world or find_world()
        self.device = torch.device("cuda", self.world.local_rank) if torch.cuda.is_available() else torch.device("cpu")
        self.inner = model.to(self.device)
        self._given = optimizer
        self.sampler = Sampler(data, seed=seed)
        self.base_batch = self.batch = batch
        self.mode, self.rate_rule, self.clip_norm = mode, rate_rule, clip_norm
        self.also = dict(also or {})
        self.checkpoints, self.checkpoint_seconds = checkpoints or Checkpoints(), checkpoint_seconds
        self.steps = 0
        self.parts = even(batch, self.world.size)
        self.loss = float("nan")
        """The mean over all ranks since the look before the last."""
        self._most_samples, self._predict, self._seed = most_samples, predict, seed
        self._loader = Loader(data, workers, self.device)
        self._clock = StepClock(self.device.type == "cuda")
        self._speed = Speed(predict, seed)
        self._current: Batch | None = None
        self._next_look, self._looked_at, self._looked_step = 1, time.monotonic(), 0
        self._saved_at = time.monotonic()
        self._loss_sum, self._loss_samples = torch.zeros((), device=self.device), 0
        self.model, self.optimizer = self.world.joined(self.inner, optimizer, self._clock.computed)
        self._resume()

    # --- the loop

    def elastic(self, train: Callable[..., Result]) -> Callable[..., Result]:
        """Calls ``train`` again, from the last commit, when ranks have come or gone. Alone it is just called."""

        @functools.wraps(train)
        def run(*args: Any, **named: Any) -> Result:
            try:
                result = self.world.keep_going(self, functools.partial(train, *args, **named))
            except Stopped:
                self._close()
                raise
            self.save()
            self._close()
            return result

        return run

    def _close(self) -> None:
        self.model = self.inner
        self.world.close()

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are still to be done, of ``count``."""
        while self.sampler.epoch < count:
            yield self.sampler.epoch
            self.sampler.start(self.sampler.epoch + 1)

    def batches(self) -> Iterator[Any]:
        """This rank's part of each batch that is left of this epoch, on its device, as a DataLoader would give it."""
        self.model.train()
        for batch in self._loader.batches(self.sampler, self._split, self.world.rank):
            self._current = batch
            self._clock.begin(batch.own)
            yield batch.content
            if self._current is not None:
                raise RuntimeError("each batch needs its step: call run.step(loss) once in the loop over run.batches()")

    def _split(self) -> tuple[int, ...]:
        return self.parts

    def step(self, loss: torch.Tensor, scaler: Any = None) -> None:
        """One update by the whole batch. ``loss`` is the sum over this rank's samples, a scalar."""
        batch, self._current = self._current, None
        if batch is None:
            raise RuntimeError("run.step(loss) belongs into the loop over run.batches(), once for each batch")
        self.optimizer.zero_grad()
        mean = loss * (batch.weight / batch.total)
        (scaler.scale(mean) if scaler else mean).backward()
        self._clock.backward_done()
        self._update(batch.total, scaler)
        self._clock.end()
        self._loss_sum += loss.detach() * batch.weight
        self._loss_samples += batch.own
        self.sampler.take(batch.total)
        self.steps += 1
        if self.steps >= self._next_look or not self.sampler.left:
            self._look_up()

    def _update(self, samples: int, scaler: Any) -> None:
        rate = factor(self.rate_rule, self.batch, self.base_batch)
        with self.world.summed(self.optimizer):
            if scaler:
                scaler.unscale_(self.optimizer)
            if self.clip_norm is not None:
                nn.utils.clip_grad_norm_(self.inner.parameters(), self.clip_norm)
            groups = self.optimizer.param_groups
            before = [group["lr"] for group in groups]
            for group in groups:
                group["lr"] = group["lr"] * rate
            if scaler:
                scaler.step(self.optimizer)
                scaler.update()
            else:
                self.optimizer.step()
            for group, usual in zip(groups, before, strict=True):
                group["lr"] = usual

    # --- what all ranks decide together

    def _look_up(self) -> None:
        """One sum over all ranks, from which each decides the same. What only rank 0 says is 0 of the others."""
        size, rank, now = self.world.size, self.world.rank, time.monotonic()
        for samples, computed, _ in self._clock.read():
            self._speed.observe(samples, computed)
        own = [self._speed.sample_seconds(), self._speed.fixed_seconds, float(self._most_samples)]
        workers = [0.0] * (3 * rank) + own + [0.0] * (3 * (size - rank - 1))
        mine = [float(stopping.should_stop()), float(self._loss_sum), float(self._loss_samples)]
        step_seconds = (now - self._looked_at) / max(1, self.steps - self._looked_step)
        due = now - self._saved_at >= self.checkpoint_seconds
        leads = [step_seconds, float(due)] if rank == 0 else [0.0, 0.0]
        told, loss, counted, usual, saves, *rest = self.world.sum([*mine, *leads, *workers])
        self.loss = loss / counted if counted else float("nan")
        self._loss_sum.zero_()
        self._loss_samples = 0
        self._looked_at, self._looked_step = now, self.steps
        self._next_look = self.steps + max(1, min(MOST_STEPS, round(LOOK_SECONDS / max(usual, 1e-6))))
        if self.mode == "bsp_balanced":
            self._rebalance([(rest[at], rest[at + 1], int(rest[at + 2])) for at in range(0, 3 * size, 3)])
        stops = told == size if self.world.elastic else told > 0
        if stops or saves:
            self.save()
        if stops:
            raise Stopped(0)
        self.world.commit()

    def _rebalance(self, told: list[tuple[float, float, int]]) -> None:
        """By each rank's seconds for a sample (0: it cannot tell yet), those of an iteration without any, and its most."""
        if self.batch >= len(told) and all(each for each, _, _ in told):
            self.parts = rebalanced([Worker(each, fixed, 1, most) for each, fixed, most in told], self.parts)

    # --- where it stands

    def state(self) -> dict[str, Any]:
        """All that the training is: tensors and plain values, as they are now."""
        also = {name: item.state_dict() for name, item in self.also.items()}
        facts = {"sampler": self.sampler.state_dict(), "steps": self.steps, "batch": self.batch}
        return {"model": self.inner.state_dict(), "optimizer": self.optimizer.state_dict(), "also": also, **facts}

    def load(self, state: Mapping[str, Any]) -> None:
        """The opposite of ``state``; the ranks may be others than then."""
        self.inner.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        # Schedules hold the optimiser they were made with, and loading a state makes new parameter groups.
        self._given.param_groups, self._given.state = self.optimizer.param_groups, self.optimizer.state
        for name, item in self.also.items():
            item.load_state_dict(state["also"][name])
        self.sampler.load_state_dict(state["sampler"])
        self.steps, self.batch = state["steps"], state["batch"]
        self.regroup()

    def regroup(self) -> None:
        """The ranks may be others than before: the batch is split evenly, and speeds are learnt anew."""
        self.parts = even(self.batch, self.world.size)
        self._speed = Speed(self._predict, self._seed)
        self._clock.read()
        self._loss_sum.zero_()
        self._loss_samples = 0
        self._current, self._next_look = None, self.steps + 1

    def save(self) -> None:
        """A checkpoint, on one rank of each machine that may have a folder of its own."""
        self._saved_at = time.monotonic()
        if self.world.writes:
            self.checkpoints.save(self.steps, self.state())

    def _resume(self) -> None:
        """From the newest checkpoint that any rank has. Of an elastic ring each takes its own: a rank that comes later
        must not wait for the others here, and gets what they have when it joins them."""
        step, state = self.checkpoints.newest() or (-1, None)
        if not self.world.elastic:
            steps = self.world.gather(step)
            step = max(steps)
            state = shared(self.world, state, steps.index(step)) if step >= 0 else None
        if state is not None:
            self.load(state)
            if self.world.rank == 0:
                print(f"goes on from step {self.steps}, in epoch {self.sampler.epoch + 1}")  # noqa: T201
