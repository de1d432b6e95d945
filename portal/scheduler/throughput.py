"""How fast a program runs on how many GPUs and with which batch size, from the steps that its jobs reported."""

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime
from functools import lru_cache
from math import exp, log
from typing import NamedTuple

from scheduling.toolkit import performance
from scheduling.toolkit.performance import Batches, Measurement, Stats
from scheduling.types import Curve

MIN_REPORTS = 2
"""A single report is of the first steps, which are slow."""
ROWS_KEPT = 200
"""Rows kept of a program: the newest show how fast it is now."""
ROUNDING_STEP = 0.05
"""Times that differ by less than this part count as equal, so that a curve is not computed again in each cycle."""
MAX_CACHED_PROGRAMS = 4096


class Steps(NamedTuple):
    """How long steps took on GPUs of one kind with one batch size: a row of ``StepStat``."""

    at: datetime
    kind: str
    nodes: int
    gpus: int
    batch: int
    reports: int
    seconds: float
    waiting_seconds: float | None
    asked_batch: int
    max_batch: int
    noise_sqr: float | None
    noise_var: float | None


class Speeds(NamedTuple):
    """The speeds of a program: with the batch size its owner chose, and with the best one that the owner allows."""

    fixed: Curve | None
    free: Curve | None = None


class _RoundedSteps(NamedTuple):
    """A row of ``Steps``, rounded so that small differences vanish."""

    kind: str
    nodes: int
    gpus: int
    batch: int
    reports: int
    seconds: float
    waiting_seconds: float | None


def measured_speeds(rows: Collection[Steps], max_gpus: int, gpus_per_node: int) -> Speeds | None:
    """Return the speeds that follow from measured steps; None without any.

    Batch size and gradient noise are those of the newest row.
    """
    newest = sorted(rows, key=lambda row: row.at)[-ROWS_KEPT:]
    if not newest:
        return None
    last = newest[-1]
    asked = last.asked_batch or last.batch
    batches = Batches(asked, max_total=last.max_batch, initial=asked)
    stats = None
    if last.noise_sqr is not None and last.noise_var is not None:
        stats = Stats(_rounded(last.noise_sqr), _rounded(last.noise_var) / asked)
    return _speeds(
        tuple(sorted((_rounded_steps(row) for row in newest), key=str)), batches, stats, max_gpus, gpus_per_node
    )


def _rounded_steps(row: Steps) -> _RoundedSteps:
    waiting = None if row.waiting_seconds is None else _rounded(row.waiting_seconds)
    reports = 1 << min(10, row.reports.bit_length() - 1)
    return _RoundedSteps(row.kind, row.nodes, row.gpus, row.batch, reports, _rounded(row.seconds), waiting)


def _rounded(value: float) -> float:
    return round(exp(round(log(value) / ROUNDING_STEP) * ROUNDING_STEP), 12) if value > 0 else 0.0


@lru_cache(MAX_CACHED_PROGRAMS)
def _speeds(
    rows: tuple[_RoundedSteps, ...], batches: Batches, stats: Stats | None, max_gpus: int, gpus_per_node: int
) -> Speeds | None:
    fitted = _fit(rows, batches)
    if fitted is None:
        return None
    model, kinds = fitted
    fixed = performance.curve(model, batches, max_gpus, gpus_per_node, kinds=kinds)
    if stats is None or batches.max_total <= batches.asked:
        return Speeds(fixed)
    return Speeds(fixed, performance.curve(model, batches, max_gpus, gpus_per_node, stats=stats, kinds=kinds))


@lru_cache(MAX_CACHED_PROGRAMS)
def _fit(rows: tuple[_RoundedSteps, ...], batches: Batches) -> tuple[performance.Model, dict[str, float]] | None:
    """Return the model of the GPU kind with the most reports, and the factor of each kind.

    Fitting takes long, so curves of different lengths share one fit.
    """
    by_kind: dict[str, list[Measurement]] = defaultdict(list)
    weights: dict[str, int] = defaultdict(int)
    for row in rows:
        local, weight = row.batch / row.gpus, float(row.reports)
        measured = Measurement(row.nodes, row.gpus, local, row.seconds, 0, row.waiting_seconds, weight)
        by_kind[row.kind].append(measured)
        weights[row.kind] += row.reports
    models = {kind: model for kind, some in by_kind.items() if (model := performance.fit(some)) is not None}
    if not models:
        return None
    usual = max(models, key=lambda kind: (weights[kind], kind))
    return models[usual], performance.kind_factors(models, usual, batches)
