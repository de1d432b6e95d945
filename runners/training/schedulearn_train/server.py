"""The decisions of a parameter server: who computes what, and whose gradients make the next update.

This module knows no processes or tensors: a gradient is anything that can be added and multiplied by a number.
``served.py`` runs it over torch.distributed. The modes follow Dutta et al. (2018) and Yu (2020); their concrete rules are
a reconstruction:

==================  ===============================================================================================
``ksync``           the first k gradients of a version; the others are cancelled and their samples computed again
``adaptive_ksync``  the same, with the k that uses the most samples per second, changed by one a round; at times all.
                    A server that always waits for all is not needed: see ``returns_to_lockstep``
``kasync``          any k gradients; older ones count less, much older ones are dropped
``adaptive_kasync`` the same, with the k at which a gradient of the slowest worker is about six updates old
``asp``             each gradient at once
==================  ===============================================================================================

Every sample counts exactly once per epoch: samples of cancelled or dropped gradients return to the pool, and an epoch ends
when none of its samples is left and no worker computes any.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from . import synchrony
from .allocation import Worker, split_evenly, split_proportionally
from .balance import PredictorKind, Speed, improve_split, is_representative
from .sampler import Indices, Sampler

Mode = Literal["ksync", "adaptive_ksync", "kasync", "adaptive_kasync", "asp"]
SYNCHRONOUS = ("ksync", "adaptive_ksync")
REBALANCE_INTERVAL_UPDATES = 10
"""Updates after which the parts of the batch are checked again."""
Gradient = Any
Apply = Callable[[Gradient, float], None]
"""Makes an update with a mean gradient and a factor for the learning rate."""


@dataclass(frozen=True, slots=True)
class Work:
    """The task of one worker: to compute the mean gradient of these samples with the parameters of this version."""

    version: int
    epoch: int
    indices: Indices


@dataclass(slots=True)
class _Task:
    work: Work
    cancelled: bool = False


@dataclass(slots=True)
class Counts:
    """Counters of updates and samples."""

    updates: int = 0
    used: int = 0
    wasted: int = 0
    """Samples whose gradients were thrown away; they are computed again."""
    staleness: list[int] = field(default_factory=list)
    """For each gradient that was used: how many updates were made while it was computed."""


class Server:
    """Gives out the samples of ``epochs`` epochs and makes updates. ``batch`` samples are computed at once by all workers."""

    def __init__(
        self,
        sampler: Sampler,
        apply: Apply | None = None,
        *,
        mode: Mode,
        batch: int,
        workers: int,
        epochs: int,
        version: int = 0,
        k: int | None = None,
        balanced: bool = False,
        predict: PredictorKind = "smoothing",
        staleness: float = synchrony.STALENESS,
        power: float = 1.0,
        lead: int | None = None,
        max_samples: Sequence[int] | None = None,
        parts: Sequence[int] | None = None,
        rounds_until_lockstep: int | None = None,
    ) -> None:
        if batch < workers:
            raise ValueError(f"a batch of {batch} leaves nothing for some of {workers} workers")
        self.sampler, self.mode = sampler, mode
        self.apply: Apply = apply or (lambda gradient, rate: None)
        self.batch, self.workers, self.epochs = batch, workers, epochs
        first = workers if mode == "adaptive_ksync" else synchrony.min_k(workers)
        self.k = 1 if mode == "asp" else min(workers, k or first)
        self.staleness, self.power, self.lead = staleness, power, lead
        self.parts = tuple(parts or split_evenly(batch, workers))
        self.version = version
        self.counts = Counts()
        self.speeds = [Speed(predict, seed) for seed in range(workers)]
        self._balanced, self._max_samples = balanced, max_samples
        self._tasks: dict[int, _Task] = {}
        self._idle: set[int] = set()
        """Workers that wait for work."""
        self._expected = set(range(workers))
        """Workers that have not registered yet."""
        self._buffer: list[tuple[int, Gradient, Work]] = []
        """Gradients for the next update, each with its worker and work."""
        self._made = [0] * workers
        """How many gradients each worker has sent."""
        self._rounds_until_lockstep = rounds_until_lockstep
        self._whole_rounds = self._last_round = 0
        """The latest rounds in a row that waited for all workers; the number of gradients of the last round."""

    @property
    def done(self) -> bool:
        return self.sampler.epoch >= self.epochs

    @property
    def returns_to_lockstep(self) -> bool:
        """Whether workers get no more work from the server, because waiting for all of them pays.

        It paid for ``rounds_until_lockstep`` rounds in a row, and now all of them wait in the middle of the same epoch.
        """
        enough = self._rounds_until_lockstep is not None and self._whole_rounds >= self._rounds_until_lockstep
        return enough and self._last_round == len(self._idle) == self.workers and self.sampler.left > 0

    def register(self, worker: int) -> Mapping[int, Work]:
        """Register a worker that is ready for the first time, and return the work to send out, by worker."""
        self._expected.discard(worker)
        self._idle.add(worker)
        return self._assign_work()

    def receive(self, worker: int, gradient: Gradient, seconds: float) -> Mapping[int, Work]:
        """Take a gradient that took so many seconds to compute, and return the work to send out now, by worker.

        Workers without work in it wait. When ``done``, the caller ends all workers that wait.
        """
        task = self._tasks.pop(worker)
        samples = len(task.work.indices)
        if is_representative(samples, self.parts[worker]):
            self.speeds[worker].observe(samples, seconds)
        self._made[worker] += 1
        self._idle.add(worker)
        if task.cancelled:
            self.counts.wasted += samples
        elif self._is_too_old(task.work):
            self.counts.wasted += samples
            self.sampler.give_back(task.work.indices)
        else:
            self._buffer.append((worker, gradient, task.work))
            if self.mode not in SYNCHRONOUS:
                self._idle.discard(worker)  # until its gradient has been used
        self._maybe_update()
        return self._assign_work()

    def _is_too_old(self, work: Work) -> bool:
        if self.mode in SYNCHRONOUS or self.mode == "asp":
            return False
        return self.version - work.version > synchrony.max_staleness(self.staleness)

    def sampler_state(self) -> dict[str, Any]:
        """Return the state of the sampler with all samples that have made no update yet given back."""
        sampler = Sampler(self.sampler.length)
        sampler.load_state_dict(self.sampler.state_dict())
        for task in self._tasks.values():
            if not task.cancelled:
                sampler.give_back(task.work.indices)
        for *_, work in self._buffer:
            sampler.give_back(work.indices)
        return sampler.state_dict()

    # --- updates

    def _maybe_update(self) -> None:
        """Make an update if there are enough gradients, or if no more can come."""
        more = self._is_computing() or any(self._may_work(worker) for worker in self._idle | self._expected)
        if not self._buffer or (len(self._buffer) < self.k and more):
            return
        ages = [self.version - work.version for *_, work in self._buffer]
        counts = [len(work.indices) for *_, work in self._buffer]
        power = 0.0 if self.mode in SYNCHRONOUS or self.mode == "asp" else self.power
        weights = [synchrony.weight(count, age, power) for count, age in zip(counts, ages, strict=True)]
        whole, samples = sum(weights), sum(counts)
        gradients = (gradient for _, gradient, _ in self._buffer)
        mean = sum(gradient * (weight / whole) for gradient, weight in zip(gradients, weights, strict=True))
        self.apply(mean, 1.0 if self.mode in SYNCHRONOUS else min(1.0, samples / self.batch))
        self.version += 1
        self.counts.updates += 1
        self.counts.used += samples
        self.counts.staleness += ages
        self._idle |= {worker for worker, *_ in self._buffer}
        self._last_round = len(self._buffer)
        self._buffer.clear()
        if self.mode in SYNCHRONOUS:
            self._cancel()
        self._adapt()

    def _cancel(self) -> None:
        """Cancel the work of late workers: they compute on, but their samples can be given to others at once."""
        for task in self._tasks.values():
            if not task.cancelled:
                task.cancelled = True
                self.sampler.give_back(task.work.indices)

    def _adapt(self) -> None:
        known = [speed.sample_seconds() for speed in self.speeds]
        if not all(known):
            return
        speeds = zip(known, self.speeds, strict=True)
        times = [speed.fixed_seconds() + each * part for (each, speed), part in zip(speeds, self.parts, strict=True)]
        if self.mode == "adaptive_ksync":
            expected = [synchrony.Expected(*each) for each in zip(times, self.parts, strict=True)]
            self.k = synchrony.next_k_sync(self.k, expected, self.version)
            self._whole_rounds = self._whole_rounds + 1 if self.k == self.workers else 0
        elif self.mode == "adaptive_kasync":
            self.k = synchrony.k_async(times, self.staleness)
        if self._balanced and self.version % REBALANCE_INTERVAL_UPDATES == 0:
            limits = self._max_samples or [self.batch] * self.workers
            each_worker = zip(known, self.speeds, limits, strict=True)
            workers = [
                Worker(sample_seconds, speed.fixed_seconds(), 1, limit, speed.standard_error())
                for sample_seconds, speed, limit in each_worker
            ]
            self.parts = improve_split(workers, self.parts)

    # --- work

    def _assign_work(self) -> dict[int, Work]:
        """Return work for the workers that wait and may work now, as long as samples are left."""
        assigned: dict[int, Work] = {}
        if self.returns_to_lockstep:
            return assigned
        if not (self.sampler.left or self._is_computing() or self._buffer or self.done):
            self.sampler.next_epoch()
        if self.done:
            return assigned
        ready = [worker for worker in sorted(self._idle) if self._may_work(worker)]
        parts = [self.parts[worker] for worker in ready]
        # The rest of an epoch takes less time if all workers share it.
        counts = split_proportionally(min(sum(parts), self.sampler.left), parts)
        for worker, part in zip(ready, counts, strict=True):
            if part:
                assigned[worker] = Work(self.version, self.sampler.epoch, self.sampler.take(part))
                self._tasks[worker] = _Task(assigned[worker])
        self._idle -= assigned.keys()
        return assigned

    def _may_work(self, worker: int) -> bool:
        """Whether a worker may get work: in k-sync once a round, and in other modes unless it is too far ahead."""
        if not self.sampler.left:
            return False
        if self.mode in SYNCHRONOUS:
            return all(worker != other for other, *_ in self._buffer)
        return not synchrony.too_far_ahead(self._made[worker] - min(self._made), self.lead)

    def _is_computing(self) -> bool:
        """Whether a worker computes a gradient that is not cancelled."""
        return any(not task.cancelled for task in self._tasks.values())
