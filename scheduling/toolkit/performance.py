"""A model of the training speed of a job: a formula with few parameters, fitted to measured steps.

The model is that of Pollux (OSDI'21; confirmed in its public code, ``adaptdl/goodput.py``): with N nodes, n GPUs, m
samples on each GPU at a time and s passes without an update before the one with it,

    grad  = a_c + b_c m                                  one pass
    sync  = 0 with one GPU, else a + b max(n - 2, 0)     a_r, b_r within a node; a_n, b_n between nodes
    step  = s grad + (grad^g + sync^g)^(1/g)             g from 1 (one after the other) to 10 (at the same time)

It is fitted by least squares on the errors of log(grad) and log(step), with the bounds and regularisers of Pollux, and
with the parameters that were not observed frozen as there (confirmed). Ours are: the sum of squares as the objective, so
that the regularisers weigh less the more was measured; Levenberg-Marquardt with an analytic gradient from several starts
at once, because the public fit often stops early (reconstruction). Synchronisation within a node counts as free until it
was measured, as there: such sizes are tried, and then known. With the times between nodes instead, they would look so
slow that they would never be tried.

Speeds are useful work: throughput times statistical efficiency (goodput, confirmed). The batch size stays as its owner
asked until the noise of its gradients was measured; Pollux takes a larger batch as free.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scheduling.renamed import renamed
from scheduling.toolkit.estimates import DEFAULT_EXPONENT
from scheduling.types import Curve, Source

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"from_runs": "curve_from_runs"})

Array = NDArray[np.float64]

FLOOR = 1e-8
CEILING = 1e6
MAX_OVERLAP = 10.0
MAX_GROWTH = 2
"""A job gets at most this many times the GPUs that it was measured on (AdaptDL, confirmed)."""
BATCHES_TRIED = 50
UNSEEN_SYNC_ERROR = 0.3
"""Relative error of a speed on several GPUs that was measured on one only."""
MIN_ERROR = 0.02
"""The smallest relative error: two runs always differ by this much, even where a fit of few points is better."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The mean of some steps with the same configuration."""

    nodes: int
    gpus: int
    local_batch: float
    """Samples on each GPU in one pass."""
    step_seconds: float
    """Seconds from update to update, over all passes."""
    accumulation: int = 0
    """Passes without an update before the one with it."""
    sync_seconds: float | None = None
    """The part of the step spent waiting for the gradients of others; None when it was not measured."""
    weight: float = 1.0

    @property
    def usable(self) -> bool:
        numbers = (self.local_batch, self.step_seconds, self.weight)
        return (
            all(isfinite(number) and number > 0 for number in numbers)
            and 1 <= self.nodes <= self.gpus
            and self.accumulation >= 0
            and (self.sync_seconds is None or isfinite(self.sync_seconds))
        )


@dataclass(frozen=True, slots=True)
class Model:
    """The seven parameters, and their accuracy. The methods take numbers or arrays."""

    a_c: float
    b_c: float
    a_n: float
    b_n: float
    a_r: float
    b_r: float
    g: float
    largest: int
    """The largest number of GPUs measured."""
    error: float
    """Relative standard error of a step time."""

    def grad_seconds(self, local_batch: ArrayLike) -> Array:
        return self.a_c + self.b_c * np.asarray(local_batch, float)

    def sync_seconds(self, nodes: ArrayLike, gpus: ArrayLike) -> Array:
        count = np.asarray(gpus, float)
        more = np.maximum(count - 2, 0)
        within, between = self.a_r + self.b_r * more, self.a_n + self.b_n * more
        return np.where(count <= 1, 0.0, np.where(np.asarray(nodes) > 1, between, within))

    def step_seconds(
        self, nodes: ArrayLike, gpus: ArrayLike, local_batch: ArrayLike, accumulation: ArrayLike = 0
    ) -> Array:
        grad, sync = np.broadcast_arrays(self.grad_seconds(local_batch), self.sync_seconds(nodes, gpus))
        longer = np.maximum(grad, sync)  # scaled by it, no power overflows or vanishes
        last = longer * ((grad / longer) ** self.g + (sync / longer) ** self.g) ** (1 / self.g)
        seconds: Array = np.asarray(accumulation) * grad + last
        return seconds


@dataclass(frozen=True, slots=True)
class Stats:
    """The squared norm of the gradient and its variance, at the initial batch size."""

    sqr: float
    var: float


@dataclass(frozen=True, slots=True)
class Batches:
    """The total batch sizes that a job allows, in samples."""

    asked: int
    max_total: int = 0
    """The largest total batch size; 0: the one asked for."""
    min_local: int = 1
    max_local: int = 0
    """The largest number of samples that fit into the memory of one GPU; 0: no bound."""
    initial: int = 0
    """The batch size at which its efficiency is 1; 0: the one asked for."""
    twice_alone: bool = False
    """Whether a larger batch takes two passes on one GPU, because the noise of gradients is measured between passes only
    (AdaptDL, confirmed). Our own training library measures it between two steps."""

    @property
    def start(self) -> int:
        return self.initial or self.asked


def efficiency(stats: Stats, batch: ArrayLike, initial: float) -> Array:
    """Return the value of a sample at a batch size: 1 at the initial one, falling beyond (Pollux, confirmed)."""
    ratio = np.asarray(batch, float) / initial
    var, sqr = max(stats.var, 0.0), max(stats.sqr, 0.0)
    if not (isfinite(var) and isfinite(sqr)) or var + sqr <= 0:
        return np.minimum(1.0, 1.0 / ratio)
    return (var + sqr) / (var + sqr * ratio)


def split(batch: ArrayLike, gpus: ArrayLike, batches: Batches) -> tuple[Array, Array]:
    """Split a total batch; return (samples in one pass on each GPU, passes without an update)."""
    local = np.asarray(batch, float) / np.asarray(gpus)
    slack = 1e-8
    passes = np.ceil(local / batches.max_local - slack) - 1 if batches.max_local else np.zeros_like(local)
    if batches.twice_alone:
        alone = (np.asarray(gpus) == 1) & (local > batches.start + slack)
        passes = np.maximum(passes, np.where(alone, 1, 0))
    return np.maximum(np.ceil(local / (passes + 1) - slack), 1), passes


def best_batch(
    model: Model, stats: Stats, batches: Batches, nodes: ArrayLike, gpus: ArrayLike
) -> tuple[NDArray[np.int64], Array]:
    """Return, for each pair of nodes and GPUs, (best total batch, goodput in samples per second at the initial batch)."""
    where, count = np.atleast_1d(np.asarray(nodes))[:, None], np.atleast_1d(np.asarray(gpus, float))[:, None]
    maximum = max(batches.max_total, batches.asked, batches.start)
    minimum = np.minimum(np.maximum(batches.start, count * batches.min_local), maximum)
    tried = minimum * (maximum / minimum) ** np.linspace(0, 1, BATCHES_TRIED)
    tried = np.concatenate([np.clip(np.full_like(count, batches.asked), minimum, maximum), tried], axis=1)
    local, passes = split(tried, count, batches)
    total = count * local * (passes + 1)
    # Rounding up to whole samples on each GPU may exceed the maximum; then only the batch that was tried counts.
    useful = np.where(total > maximum, tried, total)
    value = useful * efficiency(stats, useful, batches.start) / model.step_seconds(where, count, local, passes)
    best = np.argmax(value, axis=1)
    rows = np.arange(len(best))
    return np.minimum(total[rows, best], maximum).astype(np.int64), value[rows, best]


def curve(
    model: Model,
    batches: Batches,
    max_gpus: int,
    gpus_per_node: int,
    *,
    stats: Stats | None = None,
    source: Source = "measured",
    kinds: Mapping[str, float] | None = None,
) -> Curve:
    """Return the speeds on 1, 2, ... GPUs on as few nodes as possible.

    With ``stats`` they are those of the best batch size, otherwise of the one asked for. The curve lists at most
    ``MAX_GROWTH`` times as many GPUs as were measured.
    """
    count = np.arange(1, max(1, min(max_gpus, MAX_GROWTH * model.largest)) + 1)
    nodes = -(-count // max(1, gpus_per_node))
    one = float(_fixed_batch_rate(model, batches, 1, 1, stats))
    shape: tuple[int, ...] = ()
    if stats is None:
        speeds = _fixed_batch_rate(model, batches, nodes, count, None)
    else:
        totals, speeds = best_batch(model, stats, batches, nodes, count)
        shape = tuple(totals.tolist())
    error = model.error if model.largest > 1 else float(np.hypot(model.error, UNSEEN_SYNC_ERROR))
    return Curve(
        speeds=tuple((speeds / one).tolist()),
        batches=shape,
        kinds=dict(kinds or {}),
        apart=_two_node_ratio(model, batches, count[(nodes == 1) & (count > 1)], stats),
        source=source,
        error=round(error, 4),
    )


def _fixed_batch_rate(model: Model, batches: Batches, nodes: ArrayLike, gpus: ArrayLike, stats: Stats | None) -> Array:
    """Return the useful samples per second with the batch asked for, without those that only fill up the last GPU."""
    local, passes = split(batches.asked, gpus, batches)
    useful = batches.asked / model.step_seconds(nodes, gpus, local, passes)
    return useful if stats is None else useful * efficiency(stats, batches.asked, batches.start)


def _two_node_ratio(model: Model, batches: Batches, gpus: NDArray[np.int_], stats: Stats | None) -> float:
    """Return the ratio of the speed on two nodes to that on one: the geometric mean over the sizes that fit on one node."""
    if not len(gpus):
        return 1.0
    if stats is None:
        ratio = _fixed_batch_rate(model, batches, 2, gpus, None) / _fixed_batch_rate(model, batches, 1, gpus, None)
    else:
        ratio = best_batch(model, stats, batches, 2, gpus)[1] / best_batch(model, stats, batches, 1, gpus)[1]
    return float(np.clip(np.exp(np.log(ratio).mean()), 0.01, 1.0))


def kind_factors(models: Mapping[str, Model], reference: str, batches: Batches) -> dict[str, float]:
    """Return the speed of one GPU of each kind relative to the reference; it holds for more GPUs too (Sia, confirmed)."""
    alone = {kind: float(_fixed_batch_rate(model, batches, 1, 1, None)) for kind, model in models.items()}
    return {kind: speed / alone[reference] for kind, speed in alone.items()}


@lru_cache(maxsize=1024)
def _power_curve(exponent: float, sizes: int, error: float) -> Curve:
    speeds = tuple((np.arange(1, sizes + 1) ** exponent).tolist())
    return Curve(speeds=speeds, source="history", error=error)


# --- runs, where no step was measured ------------------------------------------------------------------------------

RUN_NOISE = 0.3
"""Standard deviation of the log of how long equal programs run."""
EXPONENT_SPREAD = 0.2
"""Standard deviation of the exponent from program to program."""


def curve_from_runs(groups: Iterable[Sequence[tuple[float, float]]], max_gpus: int) -> Curve | None:
    """Return a curve from (GPUs, seconds) of finished runs, those of equal work in one group.

    None where no group has two sizes. The speed on n GPUs is n ** e. A regression on the logs of the durations within the
    groups gives e, with a normal prior around the usual exponent, which matters less the more runs there are (ours).
    """
    found = [
        [(gpus, seconds) for gpus, seconds in group if gpus >= 1 and isfinite(seconds) and seconds > 0]
        for group in groups
    ]
    found = [group for group in found if len({gpus for gpus, _ in group}) > 1]
    if not found:
        return None
    both = [np.log(np.array(group, float)) for group in found]
    x, y = np.concatenate([part - part.mean(axis=0) for part in both]).T
    trust = (RUN_NOISE / EXPONENT_SPREAD) ** 2
    exponent = float((trust * DEFAULT_EXPONENT - x @ y) / (trust + x @ x))
    largest = max(int(gpus) for group in found for gpus, _ in group)
    error = RUN_NOISE / float(np.sqrt(trust + x @ x)) * float(np.log(max(2, largest)))
    sizes = max(1, min(max_gpus, MAX_GROWTH * largest))
    return _power_curve(round(min(max(exponent, 0.0), 1.0), 3), sizes, round(error, 3))


# --- the fit -------------------------------------------------------------------------------------------------------

LOWER_BOUNDS = np.array([*[np.log(FLOOR)] * 6, 1.0])
UPPER_BOUNDS = np.array([*[np.log(CEILING)] * 6, MAX_OVERLAP])
STARTS = ((0.5, 1.05), (0.1, 2.0), (0.9, 1.5), (0.5, 4.0), (0.2, 8.0), (0.8, 3.0))
"""The starting points of each fit: (constant part of a pass, overlap)."""
OVERLAP_WEIGHT, SLOPE_WEIGHT = np.sqrt(1e-3), np.sqrt(1e-2)
MAX_ITERATIONS = 60


def fit(measurements: Iterable[Measurement], *, before: Model | None = None) -> Model | None:
    """Return the model that explains the measurements best; None without any that can be used.

    ``before``, the model of an earlier fit, is one more starting point.
    """
    usable = [item for item in measurements if item.usable]
    if not usable:
        return None
    data = _Observations(usable)
    starts = [data.start(constant, overlap) for constant, overlap in STARTS]
    if before is not None:
        starts.append(np.clip(_theta_of(before), LOWER_BOUNDS, UPPER_BOUNDS))
    fixed = data.frozen()
    theta = np.array(starts)
    for column, value in fixed.items():
        theta[:, column] = value
    free = np.array([column not in fixed for column in range(7)])
    theta, cost = _descend(data, theta, free)
    best = theta[int(np.argmin(cost))]
    error = max(MIN_ERROR, data.error(best, int(free.sum())))
    return _to_model(best, data, error)


class _Observations:
    """Measurements as arrays."""

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        def column(name: str) -> Array:
            return np.array([getattr(item, name) for item in measurements], float)

        self.local, self.passes, self.gpus = column("local_batch"), column("accumulation"), column("gpus")
        self.step, self.weight = column("step_seconds"), np.sqrt(column("weight"))
        self.alone = self.gpus <= 1
        self.several = (column("nodes") > 1) & ~self.alone
        self.more = np.maximum(self.gpus - 2, 0)
        waits = np.array([np.nan if item.sync_seconds is None else item.sync_seconds for item in measurements], float)
        waits = np.where(self.alone, 0.0, waits)
        self.known = ~np.isnan(waits)
        # A rank that seems to do nothing but wait reveals little about its own work.
        self.wait = np.clip(np.where(self.known, waits, 0.0), 0.0, 0.9999 * self.step)
        self.grad = (self.step - self.wait) / (self.passes + 1)

    def frozen(self) -> dict[int, float]:
        """Return the parameters that these measurements do not determine, with fixed values."""
        floor = float(LOWER_BOUNDS[0])
        fixed: dict[int, float] = {}
        if len(np.unique(self.local)) == 1:
            fixed[0] = float(np.log(max(self.grad.mean() / 2, FLOOR)))
        for column, of in ((2, self.several), (4, ~self.several & ~self.alone)):
            if not of.any():
                fixed[column] = floor
            if not (of & (self.gpus > 2)).any():
                fixed[column + 1] = floor
        if self.alone.all():
            fixed[6] = 1.0
        return fixed

    def start(self, constant: float, overlap: float) -> Array:
        grad = float(np.exp(np.log(self.grad).mean()))
        theta = [np.log(constant * grad), np.log((1 - constant) * grad / self.local.mean())]
        last = self.step - self.passes * self.grad
        sync = np.maximum(last**overlap - self.grad**overlap, (0.05 * self.grad) ** overlap) ** (1 / overlap)
        for of in (self.several, ~self.several & ~self.alone):
            usual = float(np.median(sync[of])) if of.any() else grad / 10
            theta += [np.log(usual), np.log(usual / 20)]
        within: Array = np.clip(np.array([*theta, overlap]), LOWER_BOUNDS, UPPER_BOUNDS)
        return within

    def residuals(self, theta: Array) -> tuple[Array, Array]:
        """Return the (S, R) weighted errors of S sets of parameters, and their (S, R, 7) slopes, the regularisers last."""
        sets, count = len(theta), len(self.step)
        rates, g = np.exp(theta[:, :6]), theta[:, 6:]
        per_sample = rates[:, 1:2] * self.local
        grad = rates[:, 0:1] + per_sample
        base = np.where(self.several, rates[:, 2:3], rates[:, 4:5])
        growth = np.where(self.several, rates[:, 3:4], rates[:, 5:6]) * self.more
        sync = base + growth
        log_grad, log_sync = np.log(grad), np.where(self.alone, np.log(FLOOR), np.log(sync))
        lead = np.clip(g * (log_grad - log_sync), -500, 500)
        own = np.where(self.alone, 1.0, 1 / (1 + np.exp(-lead)))  # the pass's share in the last pass with its wait
        joint = np.maximum(log_grad, log_sync) + np.log1p(np.exp(-np.abs(lead))) / g
        log_last = np.where(self.alone, log_grad, joint)
        last = np.exp(log_last)
        step = self.passes * grad + last
        share = last / step

        off = np.empty((sets, 2 * count + 3))
        off[:, :count] = (log_grad - np.log(self.grad)) * (self.weight * self.known)
        off[:, count : 2 * count] = (np.log(step) - np.log(self.step)) * self.weight
        off[:, -3] = OVERLAP_WEIGHT * (theta[:, 6] - 1)
        ratios = rates[:, (3, 5)] / rates[:, (2, 4)]
        off[:, -2:] = SLOPE_WEIGHT * ratios

        slope = np.zeros((sets, 2 * count + 3, 7))
        by_grad = (1 - share + share * own) * self.weight
        by_sync = share * (1 - own) * self.weight
        constant = rates[:, 0:1] / grad
        slope[:, :count, 0] = constant * (self.weight * self.known)
        slope[:, :count, 1] = (1 - constant) * (self.weight * self.known)
        steps = slope[:, count : 2 * count]
        steps[:, :, 0], steps[:, :, 1] = by_grad * constant, by_grad * (1 - constant)
        first, rest = by_sync * base / sync, by_sync * growth / sync
        steps[:, :, 2], steps[:, :, 3] = first * self.several, rest * self.several
        steps[:, :, 4], steps[:, :, 5] = first * ~self.several, rest * ~self.several
        by_overlap = share * (own * log_grad + (1 - own) * log_sync - log_last) / g
        steps[:, :, 6] = np.where(self.alone, 0.0, by_overlap) * self.weight
        slope[:, -3, 6] = OVERLAP_WEIGHT
        for row, (a, b) in ((-2, (2, 3)), (-1, (4, 5))):
            slope[:, row, a], slope[:, row, b] = -off[:, row], off[:, row]
        return off, slope

    def error(self, theta: Array, free: int) -> float:
        """Return the relative error of a step; larger where there are hardly more points than parameters."""
        off = self.residuals(theta[None, :])[0][0, len(self.step) : 2 * len(self.step)]
        spare = len(off) - free
        mean = float(off @ off / max(1.0, float((self.weight**2).sum())))
        return float(np.sqrt(mean * len(off) / spare)) if spare > 0 else max(0.1, float(np.sqrt(mean)))


def _descend(data: _Observations, theta: Array, free: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Minimise the errors from all starting points at once, within the bounds (Levenberg-Marquardt)."""
    off, slope = data.residuals(theta)
    cost = np.einsum("sr,sr->s", off, off)
    damping = np.full(len(theta), 1e-2)
    diagonal = np.arange(7)
    idle = np.zeros(len(theta), int)
    for _ in range(MAX_ITERATIONS):
        downhill = -np.einsum("srp,sr->sp", slope, off)
        stuck = ~free | ((theta <= LOWER_BOUNDS) & (downhill < 0)) | ((theta >= UPPER_BOUNDS) & (downhill > 0))
        moving = np.where(stuck[:, None, :], 0.0, slope)
        bend = np.swapaxes(moving, 1, 2) @ moving
        bend[:, diagonal, diagonal] += damping[:, None] * (bend[:, diagonal, diagonal] + 1e-6) + 1e-12 + stuck
        step = np.linalg.solve(bend, np.where(stuck, 0.0, downhill)[:, :, None])[:, :, 0]
        there = np.clip(theta + np.clip(step, -3, 3), LOWER_BOUNDS, UPPER_BOUNDS)
        new_off, new_slope = data.residuals(there)
        new_cost = np.einsum("sr,sr->s", new_off, new_off)
        better = new_cost < cost
        idle = np.where(better & (cost - new_cost > 1e-5 * cost), 0, idle + 1)
        theta, off = np.where(better[:, None], there, theta), np.where(better[:, None], new_off, off)
        slope, cost = np.where(better[:, None, None], new_slope, slope), np.where(better, new_cost, cost)
        damping = np.clip(np.where(better, damping * 0.3, damping * 5), 1e-9, 1e9)
        if (idle >= 4).all():
            break
    return theta, cost


def _to_model(theta: Array, data: _Observations, error: float) -> Model:
    a_c, b_c, a_n, b_n, a_r, b_r = np.exp(theta[:6]).tolist()
    if not data.several.any():
        a_n, b_n = max(a_n, 1.1 * a_r), max(b_n, 1.1 * b_r)
    return Model(a_c, b_c, a_n, b_n, a_r, b_r, float(theta[6]), int(data.gpus.max()), error)


def _theta_of(model: Model) -> Array:
    rates = (model.a_c, model.b_c, model.a_n, model.b_n, model.a_r, model.b_r)
    return np.array([*np.log(rates), model.g])
