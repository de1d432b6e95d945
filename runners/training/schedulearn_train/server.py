"""The decisions of a parameter server: who computes what, and whose gradients make the next update.

Nothing here knows of processes or tensors: a gradient is whatever can be added and multiplied by a number. ``served.py``
carries it over torch.distributed. Modes, after Dutta et al. (2018) and Yu (2020), the concrete rules a reconstruction:

==================  ===============================================================================================
``ksync``           the first k gradients of a version; the others of it are cancelled, their samples come again
``adaptive_ksync``  the same with the k that uses most samples in a second, changed by one a round; now and then all.
                    Whoever waits for all for long needs no server: see ``meets``
``kasync``          any k gradients; older ones count less, much older ones are dropped
``adaptive_kasync`` the same with the k at which a gradient of the slowest worker is about six updates old
``asp``             each gradient at once
==================  ===============================================================================================

Every sample counts exactly once per epoch: what is cancelled or dropped goes back to the pool, and an epoch ends when
nothing is left of it and nobody still computes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from . import synchrony
from .allocation import Worker, even, shares
from .balance import Kind, Speed, better, is_whole
from .sampler import Indices, Sampler

Mode = Literal["ksync", "adaptive_ksync", "kasync", "adaptive_kasync", "asp"]
SYNCHRONOUS = ("ksync", "adaptive_ksync")
REBALANCED_EVERY = 10
"""Updates between two looks at the parts of the batch."""
Gradient = Any
Apply = Callable[[Gradient, float], None]
"""Makes an update with a mean gradient; the second is what to multiply the learning rate by."""


@dataclass(frozen=True, slots=True)
class Work:
    """For one worker: compute the mean gradient of these samples, with the parameters of this version."""

    version: int
    epoch: int
    indices: Indices


@dataclass(slots=True)
class _Task:
    work: Work
    cancelled: bool = False


@dataclass(slots=True)
class Counts:
    """What became of gradients and samples."""

    updates: int = 0
    used: int = 0
    wasted: int = 0
    """Samples that were computed for nothing, and came again."""
    staleness: list[int] = field(default_factory=list)
    """Of the gradients that were used: how many updates were made while they were computed."""


class Server:
    """``batch`` samples are what all workers together compute at once. After ``epochs`` nobody gets work any more."""

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
        predict: Kind = "smoothing",
        staleness: float = synchrony.STALENESS,
        power: float = 1.0,
        lead: int | None = None,
        most_samples: Sequence[int] | None = None,
        parts: Sequence[int] | None = None,
        rounds_to_meet: int | None = None,
    ) -> None:
        if batch < workers:
            raise ValueError(f"a batch of {batch} leaves nothing for some of {workers} workers")
        self.sampler, self.mode = sampler, mode
        self.apply: Apply = apply or (lambda gradient, rate: None)
        self.batch, self.workers, self.epochs = batch, workers, epochs
        first = workers if mode == "adaptive_ksync" else synchrony.least_k(workers)
        self.k = 1 if mode == "asp" else min(workers, k or first)
        self.staleness, self.power, self.lead = staleness, power, lead
        self.parts = tuple(parts or even(batch, workers))
        self.version = version
        self.counts = Counts()
        self.speeds = [Speed(predict, seed) for seed in range(workers)]
        self._balanced, self._most = balanced, most_samples
        self._tasks: dict[int, _Task] = {}
        self._idle: set[int] = set()
        """Workers that wait for work."""
        self._expected = set(range(workers))
        """Workers that have not asked yet."""
        self._buffer: list[tuple[int, Gradient, Work]] = []
        """By whom, and of what."""
        self._made = [0] * workers
        """Gradients that each has sent."""
        self._rounds_to_meet = rounds_to_meet
        self._whole_rounds = self._last_round = 0
        """Rounds in which all were waited for, up to the last one; the gradients that made that."""

    @property
    def done(self) -> bool:
        return self.sampler.epoch >= self.epochs

    @property
    def meets(self) -> bool:
        """For ``rounds_to_meet`` rounds all workers were worth waiting for, and all wait now, in the middle of an epoch, which
        is the same for all: they get no more work."""
        enough = self._rounds_to_meet is not None and self._whole_rounds >= self._rounds_to_meet
        return enough and self._last_round == len(self._idle) == self.workers and self.sampler.left > 0

    def ask(self, worker: int) -> Mapping[int, Work]:
        """A worker is ready for the first time."""
        self._expected.discard(worker)
        self._idle.add(worker)
        return self._hand_out()

    def receive(self, worker: int, gradient: Gradient, seconds: float) -> Mapping[int, Work]:
        """A gradient has come, after so many seconds of computing. The work that is to be sent out now, by worker; who is
        not in it waits. When ``done``, all that still wait are to be told so."""
        task = self._tasks.pop(worker)
        samples = len(task.work.indices)
        if is_whole(samples, self.parts[worker]):
            self.speeds[worker].observe(samples, seconds)
        self._made[worker] += 1
        self._idle.add(worker)
        if task.cancelled:
            self.counts.wasted += samples
        elif self._too_old(task.work):
            self.counts.wasted += samples
            self.sampler.give_back(task.work.indices)
        else:
            self._buffer.append((worker, gradient, task.work))
            if self.mode not in SYNCHRONOUS:
                self._idle.discard(worker)  # until its gradient has been used
        self._fire()
        return self._hand_out()

    def _too_old(self, work: Work) -> bool:
        if self.mode in SYNCHRONOUS or self.mode == "asp":
            return False
        return self.version - work.version > synchrony.most_staleness(self.staleness)

    def standing(self) -> dict[str, Any]:
        """Where the sampler would be if nobody computed: what has made no update yet is still to be done."""
        sampler = Sampler(self.sampler.length)
        sampler.load_state_dict(self.sampler.state_dict())
        for task in self._tasks.values():
            if not task.cancelled:
                sampler.give_back(task.work.indices)
        for *_, work in self._buffer:
            sampler.give_back(work.indices)
        return sampler.state_dict()

    # --- updates

    def _fire(self) -> None:
        """Makes an update if there are gradients enough, or if no more can come."""
        more = self._computing() or any(self._may_work(worker) for worker in self._idle | self._expected)
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
        """Those that were too late compute on in vain, but their samples can be given to others at once."""
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
        if self._balanced and self.version % REBALANCED_EVERY == 0:
            most = self._most or [self.batch] * self.workers
            them = zip(known, self.speeds, most, strict=True)
            workers = [Worker(each, speed.fixed_seconds(), 1, top, speed.doubt()) for each, speed, top in them]
            self.parts = better(workers, self.parts)

    # --- work

    def _hand_out(self) -> dict[int, Work]:
        """Work for those who wait, as far as there is any and it makes sense."""
        given: dict[int, Work] = {}
        if self.meets:
            return given
        if not (self.sampler.left or self._computing() or self._buffer or self.done):
            self.sampler.next_epoch()
        if self.done:
            return given
        ready = [worker for worker in sorted(self._idle) if self._may_work(worker)]
        parts = [self.parts[worker] for worker in ready]
        # The rest of an epoch takes less time if all have some of it.
        counts = shares(min(sum(parts), self.sampler.left), parts)
        for worker, part in zip(ready, counts, strict=True):
            if part:
                given[worker] = Work(self.version, self.sampler.epoch, self.sampler.take(part))
                self._tasks[worker] = _Task(given[worker])
        self._idle -= given.keys()
        return given

    def _may_work(self, worker: int) -> bool:
        """In a round of k-sync not before its end when it has given its gradient, and never too far ahead."""
        if not self.sampler.left:
            return False
        if self.mode in SYNCHRONOUS:
            return all(worker != other for other, *_ in self._buffer)
        return not synchrony.too_far_ahead(self._made[worker] - min(self._made), self.lead)

    def _computing(self) -> bool:
        """Somebody computes what will count."""
        return any(not task.cancelled for task in self._tasks.values())
