"""An ordinary PyTorch loop that may be stopped, moved and resized at any time, in five lines.

    run = Run(model, optimizer, data, batch=256)                 # joins the other ranks, goes on from a checkpoint

    @run.elastic                                                 # called again when ranks have come or gone
    def train():
        for epoch in run.epochs(20):
            for x, y in run.batches():                           # this rank's part of each batch
                run.step(cross_entropy(run.model(x), y))
    train()

About once a second all ranks *look up* together: whether they have to stop, whether a checkpoint is due, how to split
the batch, how large it shall be. What one of them knows is summed over all, and each decides the same from the sums.
"""

import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import nn

from . import batch_norm, server, stopping
from .allocation import UNLIMITED, even, shares
from .balance import SPEED_FIELDS, PredictorKind, Speed, SpeedReport, is_whole, rebalanced
from .checkpoints import Checkpoints
from .clock import StepClock
from .divergence import Comparison
from .hybrid_model import HybridModel
from .latecomers import Latecomers
from .loading import Batch, Loader
from .looks import COMPARES, SyncValues, chosen_batch, means, steps_between
from .meter import Meter
from .noise import Noise
from .rates import Rule, factor, scaled
from .reduction import Losses, Reduction
from .report import reporter
from .sampler import Sampler
from .served import ServerClient
from .shards import Channels
from .sharing import shared
from .stopping import Stopped
from .synchrony import ROUNDS_UNTIL_LOCKSTEP, STALENESS, Expected, pays
from .world import World, find_world

Mode = Literal["bsp", "bsp_balanced"] | server.Mode
BY_ALL = ("bsp", "bsp_balanced")
"""Every update is made by all ranks together."""
ADAPTIVE = "adaptive_ksync"
"""It is, too, for as long as no rank is left out: then a server has nothing to decide, and only costs."""
SOON = 3
"""Steps after the first look until the next one, which is the first to tell how fast the ranks are."""
MODES = (*BY_ALL, *get_args(server.Mode))
Result = TypeVar("Result")


class Run:
    """One training: model, optimiser, data, and where all of it stands.

    ``batch`` is that of a step over all ranks together. Losses given to ``step`` are means over the samples or their sums
    (``reduction``, detected unless given): either way a step comes to the same whatever the parts are. Within ``batch_range`` (least, most) the scheduler may
    choose another batch, and ``rate_rule`` says what becomes of the learning rate then. ``most_samples`` fit into this
    rank's memory at once: larger parts come in pieces, for which ``step`` returns False until the last. In the modes of
    ``server.py`` updates take ``k`` ranks' gradients, aim at this ``staleness``, and split the batch by speed if
    ``balanced``; the parameters are cut into ``shards``, by default one for each 4 MB. ``also`` are further things with
    ``state_dict`` that belong to the training: learning-rate schedules, a gradient scaler. With ``sync_batch_norm``
    layers of torch's BatchNorm go by the whole batch; unless you say whether they shall, several ranks are told that
    they do not. Ranks whose parameters are no longer the same end with an error, unless ``check_divergence`` is False.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Any,
        *,
        batch: int,
        batch_range: tuple[int, int] | None = None,
        mode: Mode = "bsp",
        seed: int = 0,
        workers: int = 0,
        rate_rule: Rule = "none",
        predict: PredictorKind = "smoothing",
        most_samples: int = UNLIMITED,
        clip_norm: float | None = None,
        checkpoints: Checkpoints | None = None,
        checkpoint_seconds: float = 60.0,
        also: Mapping[str, Any] | None = None,
        k: int | None = None,
        staleness: float = STALENESS,
        balanced: bool = False,
        shards: int | None = None,
        sync_batch_norm: bool | None = None,
        reduction: Reduction | None = None,
        check_divergence: bool = True,
        world: World | None = None,
    ) -> None:
        mode = os.environ.get("SCHEDULEARN_MODE") or mode  # type: ignore[assignment]  # as the job's form says
        if mode not in MODES:
            raise ValueError(f"there is no mode {mode!r}; there are {', '.join(MODES)}")
        if sync_batch_norm and mode not in BY_ALL:
            raise ValueError(
                f"sync_batch_norm needs ranks that compute in step, as in bsp and bsp_balanced, and not mode {mode!r}. "
                "Leave it out, or take layers that look at each sample by itself, as GroupNorm does"
            )
        stopping.listen()
        self.world = world or find_world()
        is_split = self.world.size > 1 or self.world.elastic
        self.losses = Losses(reduction, hints=is_split and self.world.rank == 0)
        self.device = torch.device("cuda", self.world.local_rank) if torch.cuda.is_available() else torch.device("cpu")
        self.inner = model.to(self.device)
        self._given = optimizer
        self.data = data
        self.sampler = Sampler(data, seed=seed)
        self.base_batch = self.batch = batch
        self.least_batch, self.most_batch = batch_range or (batch, batch)
        if not 0 < self.least_batch <= batch <= self.most_batch:
            raise ValueError(
                f"a batch of {batch} does not lie in its own range from {self.least_batch} to {self.most_batch}"
            )
        self.mode, self.rate_rule, self.clip_norm = mode, rate_rule, clip_norm
        self.also = dict(also or {})
        self.checkpoints, self.checkpoint_seconds = checkpoints or Checkpoints(), checkpoint_seconds
        self.steps = 0
        self.parts = even(batch, self.world.size)
        self.loss = float("nan")
        """The mean over all ranks since the look before the last; with a server that of this rank's last samples."""
        if most_samples < 1:
            raise ValueError(f"a rank computes one sample at once at least, not {most_samples}")
        self.most = [most_samples] * self.world.size
        """Samples that fit into each rank's memory at once."""
        self._most_samples, self._predict, self._seed = most_samples, predict, seed
        self._loader = Loader(data, workers, self.device)
        self._clock = StepClock(self.device.type == "cuda")
        self._statistics = batch_norm.Statistics(self.world, self._clock, bool(sync_batch_norm))
        batch_norm.follow(self.inner, self._statistics)
        self.reporter = reporter()
        self._epochs, self._passes = 0, 1
        self._speed = Speed(predict, seed)
        self.noise, self._meter = Noise(), Meter(self.inner.parameters())
        self._fresh = True
        """The ranks have just begun or changed: their first steps are not like the others."""
        self._current: Batch | None = None
        self._next_sync, self._synced_at, self._synced_step = 1, time.monotonic(), 0
        self._saved_at = time.monotonic()
        self._loss_sum, self._loss_samples = torch.zeros((), device=self.device), 0
        self._shared: tuple[tuple[float, Any], torch.Tensor] = (0.0, None), self._loss_sum
        self.model, self.optimizer = self.inner, optimizer
        self._balanced = balanced or mode == "bsp_balanced"
        self._epoch = 0
        """That ``epochs`` has given last."""
        self.server_client: ServerClient | None = None
        self.uses_server = mode not in (*BY_ALL, ADAPTIVE)
        """Each rank goes at its own pace, and a server says what it computes."""
        if mode not in BY_ALL:
            channels = Channels(*(self.world.open_channel() for _ in Channels._fields))
            self.server_client = ServerClient(
                self,
                channels,
                shards,
                k=k,
                staleness=staleness,
                balanced=balanced,
                predict=predict,
                rounds_until_lockstep=ROUNDS_UNTIL_LOCKSTEP if mode == ADAPTIVE else None,
            )
        if not self.uses_server:
            self.model, self.optimizer = self.world.wrap(self.inner, optimizer, self._clock.computed)
        self._given.param_groups = self.optimizer.param_groups  # to which the owner may add some
        self._late = Latecomers(self.world, self.optimizer)
        self._comparison = Comparison(self.world, self.inner, self.optimizer, data, check_divergence)
        if mode == ADAPTIVE:
            self.model = HybridModel(self.inner, self.model, lambda: self.uses_server)
        if sync_batch_norm is None and self.size > 1 and self.rank == 0 and any(batch_norm.layers(self.inner)):
            print(batch_norm.HINT)  # noqa: T201
        self._resume()

    # --- the loop

    def elastic(self, train: Callable[..., Result]) -> Callable[..., Result]:
        """Calls ``train`` again, from the last commit, when ranks have come or gone. Alone it is just called."""

        @functools.wraps(train)
        def run(*args: Any, **named: Any) -> Result:
            try:
                result = self.world.run_elastic(self, functools.partial(train, *args, **named))
            except Stopped:
                self._close()
                raise
            self.save()
            self._close()
            return result

        return run

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.world.size

    def _close(self) -> None:
        self.model = self.inner
        batch_norm.leave(self.inner)
        self.world.close()

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are still to be done, of ``count``."""
        self._epochs = count
        self.most = self._late.gather(self._most_samples)
        if self.uses_server:
            self._server().begin(count)
        for epoch in range(self.sampler.epoch, count):
            self._epoch = epoch
            yield epoch
            if not self.uses_server:
                self.sampler.start(epoch + 1)
            elif not self._server().is_over(epoch):
                raise RuntimeError(f"epoch {epoch} is not over: do not leave the loop over run.batches() early")
        self.sampler.start(count)

    def _server(self) -> ServerClient:
        if self.server_client is None:
            raise RuntimeError(f"mode {self.mode} has no server")
        return self.server_client

    def batches(self) -> Iterator[Any]:
        """This rank's part of each batch that is left of this epoch, on its device, as a DataLoader would give it. In pieces,
        one for each pass, where a part has more than ``most_samples``."""
        self.model.train()
        for batch in self._coming(self._epoch):
            self._current = self._statistics.batch = batch
            if not self.uses_server:
                self._in_pass(batch)
            yield batch.content
            if self._current is not None:
                raise RuntimeError("each batch needs its step: call run.step(loss) once in the loop over run.batches()")

    def _coming(self, epoch: int) -> Iterator[Batch]:
        """Of that epoch, also where the ranks go uses_server in it, or meet again."""
        uses_server = None
        while uses_server is not self.uses_server:
            uses_server = self.uses_server
            in_step = self._loader.batches(self.sampler, self._split, self.most, self.world.rank)
            for batch in self._server().batches(epoch) if uses_server else in_step:
                yield batch
                if uses_server is not self.uses_server:
                    break

    def _split(self) -> tuple[int, ...]:
        return self.parts

    def _in_pass(self, batch: Batch) -> None:
        self.world.begin_pass(batch.number, batch.passes)
        if batch.number == 0:
            self.optimizer.zero_grad()  # before the forward pass, which can have their memory
            self._clock.begin()
            if batch.passes != self._passes and batch.total == self.batch and self.rank == 0:
                print(f"computes each batch in {batch.passes} passes")  # noqa: T201
                self._passes = batch.passes
        self._clock.add_samples(batch.own)

    def step(self, loss: torch.Tensor, scaler: Any = None) -> bool:
        """One update by the whole batch. ``loss`` is the mean over this rank's samples or their sum, a scalar.

        False where this was not the last pass: the update is still to come.
        """
        batch, self._current = self._current, None
        if batch is None:
            raise RuntimeError("run.step(loss) belongs into the loop over run.batches(), once for each batch")
        if loss.ndim:
            raise ValueError(
                f"run.step(loss) takes one number, not {tuple(loss.shape)}: use loss.mean(), or loss.sum()"
            )
        if self.server_client is not None and scaler is not None:
            raise ValueError(f"mode {self.mode} does without a gradient scaler: use bfloat16, which needs none")
        if self.uses_server:
            self._server().step(loss, batch)
            self._statistics.batch = None
            return batch.is_last
        samples = self.losses.weight(loss, batch.own)
        ahead = self._next_sync - self.steps
        soon = ahead <= 1 or (ahead == 2 and self.size == 1)  # alone it takes two
        measured = soon and batch.total == self.batch and batch.is_last
        with self._meter.own() if measured else nullcontext():
            scaled_loss = scaler.scale(loss) if scaler else loss
            scaled_loss.backward(self._share(scaled_loss, samples * batch.weight / batch.total))
        self._statistics.batch = None
        if batch.own:
            self._loss_sum.add_(loss.detach(), alpha=samples)
        self._loss_samples += batch.own
        if not batch.is_last:
            return False
        self._clock.backward_done()
        self._late.add_up()
        self._update(batch, scaler, measured)
        self._clock.end()
        self.sampler.take(batch.total)
        self.steps += 1
        self.reporter.reached(self.steps)
        if self.steps >= self._next_sync or not self.sampler.left:
            self._sync()
        return True

    def _share(self, loss: torch.Tensor, part: float) -> torch.Tensor:
        """Of the whole batch's mean. Most are like the one before: to make one is work for a GPU."""
        if (part, loss.dtype) != self._shared[0]:
            self._shared = (part, loss.dtype), torch.full_like(loss, part)
        return self._shared[1]

    def _update(self, batch: Batch, scaler: Any, measured: bool) -> None:
        noise_scale = self.noise.scale if self.rate_rule == "adascale" else None
        rate = factor(self.rate_rule, self.batch, self.base_batch, noise_scale)
        with scaled(self.optimizer, rate) if rate != 1 else nullcontext(), self.world.reduced(self.optimizer):
            if scaler:
                scaler.unscale_(self.optimizer)
            if measured:
                scale = scaler.get_scale() if scaler else 1.0
                self._meter.whole(self.steps, batch.own, batch.total, self.size == 1, scale)
            if self.clip_norm is not None:
                nn.utils.clip_grad_norm_(self.inner.parameters(), self.clip_norm)
            if scaler:
                scaler.step(self.optimizer)
                scaler.update()
            else:
                self.optimizer.step()

    # --- what all ranks decide together

    def _sync(self) -> None:
        """One sum over all ranks, from which each decides the same."""
        now = time.monotonic()
        mine, facts = self._own_values(now), self._own_facts()
        summed = self.world.sum(
            [*mine, *[0.0] * (SPEED_FIELDS * self.rank), *facts, *[0.0] * (SPEED_FIELDS * (self.size - self.rank - 1))]
        )
        look, rest = SyncValues(*summed[: len(mine)]), summed[len(mine) :]
        workers = [SpeedReport(*rest[at : at + SPEED_FIELDS]) for at in range(0, len(rest), SPEED_FIELDS)]
        self.loss = look.loss / look.samples if look.samples else float("nan")
        self._loss_sum.zero_()
        self._loss_samples = 0
        self._learn_noise(look)
        self._synced_at, self._synced_step, fresh, self._fresh = now, self.steps, self._fresh, False
        between = steps_between(look.step_seconds)
        self._next_sync = self.steps + (min(SOON, between) if fresh else between)
        if look.reports >= COMPARES:
            self._comparison.compare(self.steps)
        if look.reports % COMPARES and self.rank == 0:
            self._report(look.step_seconds, workers)
        if look.batch != self.batch:
            self.batch = int(look.batch)
            self.parts = shares(self.batch, self.parts)
        parts = self.parts
        if self._balanced:
            self.parts = rebalanced(workers, self.parts, self.most)
        stops = look.stops == self.size if self.world.elastic else look.stops > 0
        if stops or look.saves:
            self.save()
        if stops:
            raise Stopped(0)
        self.world.commit()
        if self.mode == ADAPTIVE and self._epochs and not (fresh or self._is_last):
            # As they were: to split the batch anew would take another look or two.
            took = [Expected(worker.computing, part) for worker, part in zip(workers, parts, strict=True)]
            if pays(took):
                self.uses_server = True
                self._server().begin(self._epochs)

    def return_to_lockstep(self) -> None:
        """All ranks go on in step, from where the server was, which has ended. Schedules are where those of rank 0 are."""
        server = self._server().server
        state = shared(self.world, {**self.state(), "parts": server.parts} if server else None)
        self.uses_server = False
        self.load(state)
        self.parts = state["parts"]

    def _own_values(self, now: float) -> SyncValues:
        own, inverse, difference, whole = self._meter.read()
        mine = SyncValues(
            float(stopping.should_stop()), float(self._loss_sum), self._loss_samples, own, inverse, inverse > 0
        )
        if self.rank:
            return mine
        compares = self._late.all_can and self._comparison.is_due(now, self._is_last)
        return mine._replace(
            difference=difference,
            whole=whole,
            step_seconds=(now - self._synced_at) / max(1, self.steps - self._synced_step),
            saves=now - self._saved_at >= self.checkpoint_seconds,
            batch=self.batch if self.server_client else chosen_batch(self.batch, self.least_batch, self.most_batch),
            reports=float(not self._fresh and self.reporter.due(self._is_last)) + COMPARES * compares,
        )

    @property
    def _is_last(self) -> bool:
        return not self.sampler.left and self.sampler.epoch + 1 == self._epochs

    def _learn_noise(self, look: SyncValues) -> None:
        if look.difference:
            self.noise.observe_alone(look.difference, look.whole, self.batch)
        elif look.measured > 1:
            own, inverse = look.own / look.measured, look.inverse / look.measured
            self.noise.observe(own, inverse, look.whole, self.batch)

    def _own_facts(self) -> Sequence[float]:
        steps = self._clock.read()
        samples, computing, waiting = means(steps)
        speed = self._speed
        if not self._fresh:  # first steps are slower
            # A split holds until the next look, so single steps do not matter.
            whole, computed, _ = means([step for step in steps if is_whole(step[0], self.parts[self.rank])])
            speed.observe(whole, computed)
        expected = speed.sample_seconds(), speed.fixed_seconds()
        return SpeedReport(*expected, speed.error(), speed.doubt(), samples, computing, waiting)

    def _report(self, seconds: float, workers: Sequence[SpeedReport]) -> None:
        done = self.sampler.epoch + 1 - self.sampler.left / self.sampler.length
        self.reporter.step(
            step=self.steps,
            epoch=self.sampler.epoch,
            done=done / self._epochs if self._epochs else None,
            total=self._epochs * self.sampler.length or None,
            batch=self.batch,
            ranks=self.size,
            seconds=seconds,
            loss=self.loss,
            batches=(self.base_batch, self.least_batch, self.most_batch),
            noise=(self.noise.sqr, self.noise.var) if self.noise.known else None,
        )
        self.reporter.ranks([worker.report(part) for worker, part in zip(workers, self.parts, strict=True)])
        self.reporter.flush()

    # --- where it stands

    def state(self) -> dict[str, Any]:
        """All that the training is: tensors and plain values, as they are now."""
        also = {name: item.state_dict() for name, item in self.also.items()}
        if self.uses_server and (served := self._server().state()):
            return {**served, "also": also}
        facts = {"sampler": self.sampler.state_dict(), "steps": self.steps, "batch": self.batch}
        facts |= {"noise": self.noise.state_dict(), "reduction": self.losses.reduction}
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
        self.steps, self.batch, self._epoch = state["steps"], state["batch"], self.sampler.epoch
        self.losses.assume_sum = "reduction" not in state
        if "noise" in state:
            self.noise.load_state_dict(state["noise"])
        self.regroup()

    def regroup(self) -> None:
        """The ranks may be others than before: the batch is split evenly, and speeds are learnt anew."""
        self.parts = even(self.batch, self.world.size)
        self._speed = Speed(self._predict, self._seed)
        self._clock.read()
        self._loss_sum.zero_()
        self._loss_samples = 0
        self._current = self._statistics.batch = None
        self._next_sync, self._fresh = self.steps + 1, True
        self._comparison.restart()
        self._synced_at, self._synced_step = time.monotonic(), self.steps

    def save(self) -> None:
        """A checkpoint, on one rank of each machine that may have a folder of its own; with a server where that is."""
        self._saved_at = time.monotonic()
        if self.rank == 0 if self.uses_server else self.world.writes:
            state = self.state()
            self.checkpoints.save(state["steps"], state)

    def _resume(self) -> None:
        """From the newest checkpoint that any rank has. Of an elastic ring each takes its own: a rank that comes later
        must not wait for the others here, and gets what they have when it joins them."""
        step, state = self.checkpoints.newest() or (-1, None)
        if not self.world.elastic:
            if state is None and self.size > 1 and self.rank == 0:
                step, state = 0, self.state()  # without a checkpoint all begin where rank 0 does
            steps = self.world.gather(step)
            step = max(steps)
            state = shared(self.world, state, steps.index(step), through_cpu=self.uses_server) if step >= 0 else None
        if state is not None:
            self.load(state)
            if self.steps and self.rank == 0:
                print(f"Resumed from step {self.steps}, in epoch {self.sampler.epoch + 1}")  # noqa: T201
