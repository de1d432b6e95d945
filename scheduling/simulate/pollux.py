"""The measured applications of Pollux (Qiao et al., OSDI'21): step times by placement, gradient statistics by epoch.

Reads the profiles and workloads of the artifact (petuum/adaptdl, branch osdi21-artifact; confirmed from its code, and by
the turnaround of each job under policies without choices of their own). The rules:

* Total batch B on n GPUs: local = ceil(B/n), accumulated over a + 1 steps so that none exceeds the largest that fits;
  the batch of each GPU is rounded up, except where the total would exceed the largest validated batch. This last rule
  is in no text: it was found because the results of all other jobs were exact.
* Step time: linear in the local batch where the placement was measured (rotations are the same), else linear
  between measured (nodes, GPUs, local batch).
* A step with an r times larger batch counts as (var + sqr) / (var/r + sqr) steps of the smallest batch, with var and
  sqr of the epoch.
* An epoch ends at the smallest ``progress`` that any batch needed for it; a job ends after its epochs.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

from scheduling.simulate.inputs import Submission
from scheduling.simulate.learning import SpeedLearner
from scheduling.simulate.truth import JobFacts, Knowledge
from scheduling.toolkit.performance import Batches, Stats
from scheduling.types import Curve, Estimate, Job, NodeId, Placement

Mode = Literal["rigid", "fixed", "free"]
"""Rigid: GPUs and batch size of the trace. Fixed: elastic with the batch size of the trace. Free: elastic with any."""

NODE_GPUS = 4
MAX_NODES = 16
MAX_GPUS = 64
RESTART_SECONDS = 30.0
"""The cost of each change of GPUs, including the first start."""
BATCH_CANDIDATES = 50
"""The number of batch sizes that are tried, from the smallest to the largest."""
MAX_LOCAL_BATCH = {"yolov3": 8}
"""Larger batches were measured, but do not fit with its optimizer."""
MIN_FREE_BATCH = {"ncf": 32768}
"""The smallest batch with which the reference trains where the batch size is free."""

Shape = tuple[int, ...]


@dataclass(eq=False)
class Application:
    """One profiled model. Speeds are progress per second; results are cached."""

    name: str
    measured: Mapping[Shape, np.ndarray]
    """By placement, rows of local batch, step time, synchronisation time."""
    scattered: np.ndarray
    """Rows of nodes, GPUs, local batch, step time, synchronisation time."""
    validated: Sequence[int]
    """Total batches, smallest first."""
    sqr: np.ndarray
    var: np.ndarray
    """``sqr`` and ``var`` by batch and epoch."""
    ends: np.ndarray
    """The progress at which each epoch ends."""
    min_local: float = 0.0
    max_local: float = 0.0
    min_free_batch: int = 0
    _steps: dict[tuple[Shape, int], float] = field(default_factory=dict)
    _paths: dict[tuple[Shape, int, bool], "EpochSchedule"] = field(default_factory=dict)
    _curves: dict[Any, Curve] = field(default_factory=dict)
    _space: Any = None

    @property
    def epochs(self) -> int:
        return len(self.ends)

    @property
    def first_batch(self) -> int:
        return self.validated[0]

    def step_seconds(self, shape: Shape, batch: int) -> float:
        key = (shape, batch)
        if key not in self._steps:
            self._steps[key] = self._step_seconds(shape, batch)
        return self._steps[key]

    def _step_seconds(self, shape: Shape, batch: int) -> float:
        local, extra = self.split(sum(shape), batch)
        return self.step_and_sync(shape, local, extra)[0]

    def step_and_sync(self, shape: Shape, local: int, extra: int) -> tuple[float, float]:
        step, sync = self._measured(shape, local)
        return step + extra * (step - sync), sync

    def split(self, gpus: int, batch: int) -> tuple[int, int]:
        """Return the local batch of one pass, and the number of further passes of a step."""
        local = math.ceil(batch / gpus)
        extra = max(0, math.ceil(local / self.max_local) - 1)
        if gpus == 1 and batch > self.first_batch:
            extra = max(1, extra)
        maximum = int(self.validated[-1] / (gpus * (extra + 1)))
        return min(math.ceil(local / (extra + 1)), max(1, maximum)), extra

    def real_batch(self, shape: Shape, batch: int) -> int:
        """Return the actual total batch: all GPUs have the same number of samples, so it may differ a little."""
        local, extra = self.split(sum(shape), batch)
        return sum(shape) * local * (extra + 1)

    def _measured(self, shape: Shape, local: float) -> tuple[float, float]:
        rows = self.measured.get(shape)
        if rows is not None:
            return float(np.interp(local, rows[:, 0], rows[:, 1])), float(np.interp(local, rows[:, 0], rows[:, 2]))
        if self._space is None:
            where, what = self.scattered[:, :3], self.scattered[:, 3:]
            self._space = LinearNDInterpolator(where, what), NearestNDInterpolator(where, what)
        gpus = min(sum(shape), MAX_GPUS)
        nodes = min(MAX_NODES, max(len(shape), math.ceil(gpus / NODE_GPUS)))
        local = min(max(local, self.min_local), self.max_local)
        step, sync = self._space[0]([[nodes, gpus, local]])[0]
        if math.isnan(step):
            step, sync = self._space[1]([[nodes, gpus, local]])[0]
        return float(step), float(sync)

    def gains(self, batch: int) -> np.ndarray:
        """Return, by epoch, the value of a step with this batch, in steps of the smallest batch."""
        scale = batch / self.first_batch
        sqr = np.array([np.interp(batch, self.validated, column) for column in self.sqr.T])
        var = np.array([np.interp(batch, self.validated, column) for column in self.var.T])
        gains: np.ndarray = (var + sqr) / (var / scale + sqr)
        return gains

    def epoch_schedule(self, shape: Shape, batch: int, *, whole_seconds: bool) -> "EpochSchedule":
        """Return the schedule of epochs on such GPUs; with batch 0, with the best batch for each epoch."""
        key = (shape, batch, whole_seconds)
        if key not in self._paths:
            if batch:
                rates = self.gains(self.real_batch(shape, batch)) / self.step_seconds(shape, batch)
                batches = [batch] * self.epochs
            else:
                table = self._free_rates(shape)
                candidates, rates = self.free_batches(sum(shape)), table.max(axis=1)
                batches = [candidates[best] for best in table.argmax(axis=1)]
            self._paths[key] = EpochSchedule(self.ends, rates, batches, whole_seconds)
        return self._paths[key]

    def free_batches(self, gpus: int) -> list[int]:
        """Return the batch sizes that a job on ``gpus`` GPUs may choose from."""
        minimum = max(self.min_free_batch or self.first_batch, math.ceil(gpus * self.min_local))
        maximum = max(minimum, self.validated[-1])
        return sorted({round(batch) for batch in np.geomspace(minimum, maximum, BATCH_CANDIDATES)})

    def _free_rates(self, shape: Shape) -> np.ndarray:
        """Return the speeds by epoch and candidate batch."""
        batches = self.free_batches(sum(shape))
        return np.array([self._gains_of(batch) / self.step_seconds(shape, batch) for batch in batches]).T

    def _gains_of(self, batch: int) -> np.ndarray:
        if batch not in self._gains:
            self._gains[batch] = self.gains(batch)
        return self._gains[batch]

    _gains: dict[int, np.ndarray] = field(default_factory=dict)

    def max_gpus_for(self, batch: int) -> int:
        """Return the largest number of GPUs with at least the smallest measured local batch on each."""
        return max(1, min(MAX_GPUS, int(batch / self.min_local)))

    def curve(self, batch: int, node_gpus: int) -> Curve:
        """Return the curve with a fixed batch, for which all epochs scale the same."""
        key = ("fixed", batch, node_gpus)
        if key not in self._curves:
            alone = self.step_seconds((1,), batch)
            sizes = range(1, self.max_gpus_for(batch) + 1)
            speeds = tuple(alone / self.step_seconds(compact_shape(n, node_gpus), batch) for n in sizes)
            self._curves[key] = Curve(speeds, source="measured")
        return self._curves[key]

    def free_curve(self, batch: int, node_gpus: int, epoch: int) -> Curve:
        """Return the curve with the best batch for each number of GPUs, relative to one GPU with ``batch``."""
        key = ("free", batch, node_gpus, epoch)
        if key not in self._curves:
            alone = self._gains_of(batch)[epoch] / self.step_seconds((1,), batch)
            speeds, batches = [], []
            for n in range(1, self.max_gpus_for(self.validated[-1]) + 1):
                shape = compact_shape(n, node_gpus)
                if shape not in self._rates:
                    self._rates[shape] = self._free_rates(shape)
                rates = self._rates[shape][epoch]
                best = int(rates.argmax())
                speeds.append(float(rates[best] / alone))
                batches.append(self.free_batches(n)[best])
            self._curves[key] = Curve(tuple(speeds), tuple(batches), source="measured")
        return self._curves[key]

    _rates: dict[Shape, np.ndarray] = field(default_factory=dict)


class EpochSchedule:
    """The epochs of an application at one speed each: converts progress to seconds and back."""

    def __init__(self, ends: np.ndarray, rates: np.ndarray, batches: list[int], whole_seconds: bool) -> None:
        self.ends: list[float] = ends.tolist()
        self.rates: list[float] = rates.tolist()
        self.whole = whole_seconds
        self.batches = batches
        lasts = np.diff(ends, prepend=0.0) / rates
        if whole_seconds:
            lasts = np.rint(lasts)
        self.after: list[float] = np.append(np.cumsum(lasts[::-1])[::-1], 0.0).tolist()
        """Seconds from the start of each epoch to the end of the job."""

    def seconds_left(self, epoch: int, progress: float) -> float:
        """Return the seconds to the end of this epoch."""
        seconds = (self.ends[epoch] - progress) / self.rates[epoch]
        return float(round(seconds)) if self.whole else max(0.0, seconds)


@dataclass(frozen=True, eq=False, slots=True)
class PolluxTruth:
    application: Application
    batch: int
    free: bool = False
    knowledge: Knowledge = "oracle"
    whole_seconds: bool = False
    """Whether to round the rest of each epoch to whole seconds, half to even, as the reference does."""
    node_gpus: int = NODE_GPUS
    learner: SpeedLearner | None = None
    """What the jobs of an application have learnt together, where speeds are learnt."""

    @property
    def batches(self) -> Batches:
        app = self.application
        return Batches(
            asked=self.batch,
            max_total=app.validated[-1],
            min_local=math.ceil(app.min_local),
            max_local=int(app.max_local),
            initial=app.first_batch,
            twice_alone=True,
        )

    def begin(self, job: Job, kinds: Mapping[NodeId, str]) -> "PolluxRun":
        return PolluxRun(self)

    def seconds_alone(self, job: Job, gpus: int) -> float:
        shape = compact_shape(min(gpus, MAX_GPUS), self.node_gpus)
        batch = 0 if self.free else self.batch
        return (
            RESTART_SECONDS + self.application.epoch_schedule(shape, batch, whole_seconds=self.whole_seconds).after[0]
        )


@dataclass(slots=True)
class PolluxRun:
    truth: PolluxTruth
    epoch: int = 0
    progress: float = 0.0
    own_batch: int = 0
    """The batch that it chose itself at the last call of ``seconds_to_end``; 0: the best of each epoch."""

    def _epoch_schedule(self, on: Placement, batch: int) -> EpochSchedule:
        truth = self.truth
        chosen = batch or self.own_batch if truth.free else truth.batch
        return truth.application.epoch_schedule(shape_of(on), chosen, whole_seconds=truth.whole_seconds)

    def _choose_batch(self, on: Placement) -> int:
        """Return the batch that the job chooses if the policy does not: the best as far as it knows; 0 if it knows all."""
        if self.truth.learner is None:
            return 0
        curve = self._learnt_free_curve(self.truth.batch)
        return curve.batches[min(sum(on.values()), len(curve.batches)) - 1] if curve else self.truth.batch

    def _learnt_free_curve(self, batch: int) -> Curve | None:
        truth, app = self.truth, self.truth.application
        if truth.learner is None:
            return None
        epoch = min(self.epoch, app.epochs - 1)
        sqr, var = (float(np.interp(batch, app.validated, table[:, epoch])) for table in (app.sqr, app.var))
        return truth.learner.curve(truth.batches, app.max_gpus_for(app.validated[-1]), Stats(sqr, var))

    def advance(self, seconds: float, on: Placement, batch: int) -> None:
        path = self._epoch_schedule(on, batch)
        if self.truth.learner is not None and seconds > 0:
            self._record_step(on, path.batches[min(self.epoch, len(path.batches) - 1)])
        while seconds > 0 and self.epoch < len(path.ends):
            rest = path.seconds_left(self.epoch, self.progress)
            if rest > seconds:
                self.progress += seconds * path.rates[self.epoch]
                return
            seconds -= rest
            self.progress = path.ends[self.epoch]
            self.epoch += 1

    def seconds_to_end(self, on: Placement, batch: int) -> float:
        self.own_batch = self._choose_batch(on)
        path = self._epoch_schedule(on, batch)
        if self.epoch >= len(path.ends):
            return 0.0
        return path.seconds_left(self.epoch, self.progress) + path.after[self.epoch + 1]

    def known(self, on: Placement, batch: int) -> JobFacts:
        truth, app = self.truth, self.truth.application
        now = truth.batch
        if on and truth.free:
            now = self._epoch_schedule(on, batch).batches[min(self.epoch, app.epochs - 1)]
        if truth.knowledge == "none":
            return JobFacts(batch=now)
        left = None
        if truth.knowledge in ("oracle", "declared"):
            left = self._remaining_seconds()
        work = None if left is None else Estimate(left, "measured" if truth.knowledge == "oracle" else "given")
        part = None if left is None else 1.0 - left / self._schedule_alone().after[0]
        if truth.learner is not None:
            learnt = truth.learner.curve(truth.batches, app.max_gpus_for(truth.batch))
            return JobFacts(work, learnt, self._learnt_free_curve(now) if truth.free else None, part, now)
        speed = app.curve(truth.batch, truth.node_gpus)
        epoch = min(self.epoch, app.epochs - 1)
        free = app.free_curve(truth.batch, truth.node_gpus, epoch) if truth.free else None
        return JobFacts(work, speed, free, part, now)

    def _schedule_alone(self) -> EpochSchedule:
        return self.truth.application.epoch_schedule((1,), self.truth.batch, whole_seconds=False)

    def _remaining_seconds(self) -> float:
        """Return the remaining seconds on one GPU with the batch asked for."""
        alone = self._schedule_alone()
        if self.epoch >= len(alone.ends):
            return 0.0
        return alone.seconds_left(self.epoch, self.progress) + alone.after[self.epoch + 1]

    def _record_step(self, on: Placement, batch: int) -> None:
        truth, shape = self.truth, shape_of(on)
        local, extra = truth.application.split(sum(shape), batch)
        if truth.learner is not None:
            measure = partial(truth.application.step_and_sync, shape, local, extra)
            truth.learner.record_step(len(shape), sum(shape), local, extra, measure)

    def save(self) -> tuple[int, float]:
        return self.epoch, self.progress

    def restore(self, saved: tuple[int, float]) -> None:
        self.epoch, self.progress = saved


def shape_of(on: Placement) -> Shape:
    """Return the GPUs of each node, as the smallest of all rotations, whose measurements are shared."""
    counts = tuple(on.values())
    if len(counts) < 2:
        return counts
    return min(counts[first:] + counts[:first] for first in range(len(counts)))


def compact_shape(gpus: int, node_gpus: int) -> Shape:
    """Return the shape of ``gpus`` GPUs on as few nodes as possible."""
    full, rest = divmod(gpus, node_gpus)
    return ((rest,) if rest else ()) + (node_gpus,) * full


# --- reading


def read_profiles(folder: Path) -> dict[str, Application]:
    """Read ``<application>/{placements,scalability,validation-B}.csv``. Raises ValueError for a folder without profiles."""
    found = {path.name: read_application(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    if not found:
        raise ValueError(f"There are no profiles in {folder}: a folder for each application was expected.")
    return found


def read_application(folder: Path) -> Application:
    by_shape: dict[Shape, list[tuple[float, ...]]] = defaultdict(list)
    for row in _rows(folder / "placements.csv"):
        shape = tuple(int(digit) for digit in row["placement"])
        by_shape[shape].append((float(row["local_bsz"]), float(row["step_time"]), float(row["sync_time"])))
    measured = {shape: np.array(sorted(rows)) for shape, rows in by_shape.items()}
    averaged: dict[tuple[float, ...], list[tuple[float, float]]] = defaultdict(list)
    for shape, rows in by_shape.items():
        for local, step, sync in rows:
            averaged[(len(shape), sum(shape), local)].append((step, sync))
    scattered = [(*where, *np.mean(times, axis=0)) for where, times in sorted(averaged.items())]
    for row in _rows(folder / "scalability.csv"):
        scattered.append(
            tuple(float(row[name]) for name in ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"))
        )
    validations = {int(path.stem.split("-")[1]): _rows(path) for path in folder.glob("validation-*.csv")}
    if not measured or not validations:
        raise ValueError(f"{folder} has no measured placements, or no validation.")
    batches = sorted(validations)

    def column(name: str) -> np.ndarray:
        return np.array([[float(row[name]) for row in validations[batch]] for batch in batches])

    locals_ = [rows[0] for several in by_shape.values() for rows in several]
    return Application(
        name=folder.name,
        measured=measured,
        scattered=np.array(scattered),
        validated=batches,
        sqr=column("grad_sqr"),
        var=column("grad_var"),
        ends=column("progress").min(axis=0),
        min_local=min(locals_),
        max_local=MAX_LOCAL_BATCH.get(folder.name, max(locals_)),
        min_free_batch=MIN_FREE_BATCH.get(folder.name, 0),
    )


def read_workload(
    text: str,
    profiles: Mapping[str, Application],
    mode: Mode = "rigid",
    *,
    knowledge: Knowledge = "oracle",
    whole_seconds: bool = False,
    node_gpus: int = NODE_GPUS,
) -> list[Submission]:
    """Read ``name,time,application,num_replicas,batch_size``. Raises ValueError for an application without a profile.

    Where speeds are learnt, read the workload again for each simulation.
    """
    found = []
    learners = {name: SpeedLearner(node_gpus) if knowledge in ("learnt", "declared") else None for name in profiles}
    for row in csv.DictReader(text.splitlines()):
        app = profiles.get(row["application"])
        if app is None:
            raise ValueError(f"There is no profile of {row['application']}; there are {', '.join(sorted(profiles))}.")
        gpus, batch = int(row["num_replicas"]), int(row["batch_size"])
        elastic = mode != "rigid"
        maximum = gpus
        if elastic:
            maximum = max(gpus, app.max_gpus_for(app.validated[-1] if mode == "free" else batch))
        job = Job(
            id=row["name"],
            owner=row.get("owner") or row["name"],  # the trace has no users: each job gets its own
            submitted_at=float(row["time"]),
            min_gpus=1 if elastic else gpus,
            max_gpus=maximum,
            asked_gpus=gpus,
            elastic=elastic,
            preemptible=True,
            restart_seconds=RESTART_SECONDS,
            resize_seconds=RESTART_SECONDS,
            script=row["application"],
            batch=batch,
        )
        truth = PolluxTruth(app, batch, mode == "free", knowledge, whole_seconds, node_gpus, learners[app.name])
        found.append(Submission(job, truth, start_seconds=RESTART_SECONDS, movable=elastic))
    return found


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
