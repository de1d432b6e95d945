"""Computes the input of a simulation from what the real product did with jobs of known steps.

The rows have the times when GPUs were given, asked back and free; the logs of the jobs have the time of each step and the
number of ranks. From both follow mean costs, the same for all jobs. The simulator gets these and the jobs as they were
submitted, but neither the real duration of a job nor any decision.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, median

from scheduling.simulate import Interruption, Options, Plain, Submission
from scheduling.types import Curve, Job

STAMP = re.compile(r"^(begin|step \d+) on (\d+) at (\d+\.\d+)$", re.MULTILINE)
SAME_DECISION_SECONDS = 1.0
"""Seconds within which GPUs that were given or asked back belong to one decision."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a job: a number of steps, each a sleep of ``step_seconds`` shared among its ranks."""

    steps: int
    step_seconds: float
    distributed: bool

    def ideal_seconds(self, ranks: int) -> float:
        return self.step_seconds / ranks


@dataclass(frozen=True, slots=True)
class Stamp:
    """The end of a step, or the begin of training on a set of ranks."""

    at: float
    ranks: int
    begin: bool


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """One GPU that an attempt held."""

    since: float
    asked_back: float | None
    until: float


@dataclass(frozen=True, slots=True)
class JobHistory:
    """The history of a job. ``job`` is what the policy saw of it in the first cycle after its submission."""

    job: Job
    work: Work
    ended: float
    first_cycle_at: float
    attempts: Sequence[Sequence[HeldGpu]]
    stamps: Sequence[Stamp]

    @property
    def turnaround(self) -> float:
        return self.ended - self.job.submitted_at

    def attempts_with_stamps(self) -> list[tuple[Sequence[HeldGpu], list[Stamp]]]:
        """Return each attempt with its stamps."""
        starts = [min(gpu.since for gpu in held) for held in self.attempts]
        edges = [*starts[1:], float("inf")]
        return [
            (held, [stamp for stamp in self.stamps if start <= stamp.at < edge])
            for held, start, edge in zip(self.attempts, starts, edges, strict=True)
        ]


@dataclass
class SizeChange:
    """A decision to change the number of GPUs of a running job."""

    at: float
    by: int
    left: int = 0
    """The number of ranks that have not joined, or left, yet."""
    effective_at: float | None = None
    still: float = 0.0

    def __post_init__(self) -> None:
        self.left = abs(self.by)


@dataclass(frozen=True, slots=True)
class Durations:
    """Measured durations in seconds."""

    seconds: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        return mean(self.seconds) if self.seconds else 0.0

    def __str__(self) -> str:
        if not self.seconds:
            return "none"
        spread = f"{min(self.seconds):.1f} to {max(self.seconds):.1f}"
        return f"{self.mean:.2f} s (median {median(self.seconds):.2f}, {spread}, {len(self.seconds)} times)"


@dataclass(frozen=True)
class Costs:
    """Durations over all jobs of one run. The keys are ``True`` for Horovod jobs and ``False`` for plain commands."""

    first_cycle: Durations
    """From a submission to its first cycle."""
    start: Mapping[bool, Durations]
    """From the placement to the begin of the first step."""
    restart: Mapping[bool, Durations]
    """The same in later attempts."""
    end: Mapping[bool, Durations]
    """From the last step to the last GPU being free."""
    give_back: Durations
    """From asking for a GPU until it is free, while the job continues or has to wait."""
    notice: Mapping[bool, Durations]
    """From a decision to the last step before it has an effect; ``True`` for growing, ``False`` for shrinking."""
    still: Mapping[bool, Durations]
    step: Mapping[int, Durations] = field(default_factory=dict)
    """The time of a step in addition to its sleep, by number of ranks; 0 stands for a plain command."""
    unmatched: int = 0
    """The number of changes without an effect: undone, or the job ended first."""
    failed_starts: int = 0
    """The number of attempts that ended before their first step, which never happens in the simulator."""

    def overhead(self, ranks: int, distributed: bool) -> float:
        """Return the overhead of a step; for a size that was not measured, that of the nearest one."""
        if not distributed:
            return self.step[0].mean if 0 in self.step else 0.0
        seen = [size for size in self.step if size]
        return self.step[min(seen, key=lambda size: (abs(size - ranks), size))].mean if seen else 0.0

    def lines(self) -> list[str]:
        names = {True: "Horovod", False: "plain"}
        rows = [("submission -> its first cycle", self.first_cycle)]
        rows += [
            (f"placement -> first step, {names[distributed]}", self.start[distributed]) for distributed in (False, True)
        ]
        rows += [
            (f"the same after a stop, {names[distributed]}", self.restart[distributed]) for distributed in (False, True)
        ]
        rows += [
            (f"last step -> GPUs free, {names[distributed]}", self.end[distributed]) for distributed in (False, True)
        ]
        rows += [("asked back -> free", self.give_back)]
        for grows, name in ((True, "growing"), (False, "shrinking")):
            rows += [(f"{name}: trains on as before", self.notice[grows]), (f"{name}: stands still", self.still[grows])]
        rows += [
            (f"a step beyond its sleep, {f'{size} ranks' if size else 'plain'}", self.step[size])
            for size in sorted(self.step)
        ]
        return [f"{name}: {cost}" for name, cost in rows]


def stamps_of(text: str) -> list[Stamp]:
    """Return the stamps in the output of a job, from any rank."""
    stamps = [Stamp(float(at), int(ranks), what == "begin") for what, ranks, at in STAMP.findall(text)]
    return sorted(stamps, key=lambda stamp: stamp.at)


def measure_costs(jobs: Iterable[JobHistory]) -> Costs:
    start: dict[bool, list[float]] = {True: [], False: []}
    restart: dict[bool, list[float]] = {True: [], False: []}
    end: dict[bool, list[float]] = {True: [], False: []}
    notice: dict[bool, list[float]] = {True: [], False: []}
    still: dict[bool, list[float]] = {True: [], False: []}
    steps: dict[int, list[float]] = defaultdict(list)
    turns, back, unmatched, failed_starts = [], [], 0, 0
    for job in jobs:
        turns.append(job.first_cycle_at - job.job.submitted_at)
        distributed, has_begun = job.work.distributed, False
        for number, (held, stamps) in enumerate(job.attempts_with_stamps()):
            began = next((stamp for stamp in stamps if stamp.begin), None)
            if began is None:
                failed_starts += 1
                continue
            (restart if has_begun else start)[distributed].append(began.at - min(gpu.since for gpu in held))
            has_begun = True
            over = stamps[-1].at
            if number < len(job.attempts) - 1:
                over = stopped_at(held)
            else:
                end[distributed].append(job.ended - over)
            back += [
                gpu.until - gpu.asked_back for gpu in held if gpu.asked_back is not None and gpu.asked_back <= over
            ]
            for size, seconds in step_lengths(stamps):
                steps[size if distributed else 0].append(seconds - job.work.ideal_seconds(size))
            changes = changes_of(held, over)
            match_changes(changes, stamps, size_of(held))
            for change in changes:
                if change.effective_at is None or change.left:
                    unmatched += 1
                else:
                    notice[change.by > 0].append(change.effective_at - change.at)
                    still[change.by > 0].append(change.still)
    return Costs(
        first_cycle=Durations(tuple(turns)),
        start=_costs(start),
        restart=_costs(restart),
        end=_costs(end),
        give_back=Durations(tuple(back)),
        notice=_costs(notice),
        still=_costs(still),
        step={size: Durations(tuple(seconds)) for size, seconds in steps.items()},
        unmatched=unmatched,
        failed_starts=failed_starts,
    )


def _costs(found: Mapping[bool, Sequence[float]]) -> dict[bool, Durations]:
    return {key: Durations(tuple(seconds)) for key, seconds in found.items()}


def step_lengths(stamps: Sequence[Stamp]) -> Iterable[tuple[int, float]]:
    """Yield ranks and seconds of each step that was not interrupted."""
    for before, stamp in zip(stamps, stamps[1:], strict=False):
        if not stamp.begin and before.ranks == stamp.ranks:
            yield stamp.ranks, stamp.at - before.at


def stopped_at(held: Sequence[HeldGpu]) -> float:
    """Return when the last of its GPUs were asked back."""
    return max(gpu.until if gpu.asked_back is None else gpu.asked_back for gpu in held)


def size_of(held: Sequence[HeldGpu]) -> int:
    """Return the number of GPUs at the start."""
    first = min(gpu.since for gpu in held)
    return sum(gpu.since <= first + SAME_DECISION_SECONDS for gpu in held)


def changes_of(held: Sequence[HeldGpu], over: float) -> list[SizeChange]:
    """Return the changes of a running attempt before its end, oldest first."""
    first = min(gpu.since for gpu in held)
    moves = [(gpu.since, 1) for gpu in held if gpu.since > first + SAME_DECISION_SECONDS]
    moves += [
        (gpu.asked_back, -1)
        for gpu in held
        if gpu.asked_back is not None and gpu.asked_back < over - SAME_DECISION_SECONDS
    ]
    changes: list[SizeChange] = []
    for at, by in sorted(moves):
        if changes and at - changes[-1].at < SAME_DECISION_SECONDS and (changes[-1].by > 0) == (by > 0):
            changes[-1] = SizeChange(changes[-1].at, changes[-1].by + by)
        else:
            changes.append(SizeChange(at, by))
    return changes


def match_changes(changes: Sequence[SizeChange], stamps: Sequence[Stamp], size: int) -> None:
    """Find when each change took effect, and how long training paused for it. ``size`` is that at the start.

    Training that begins again stamps its number of ranks: as many changes have taken effect by then as explain it, GPU by
    GPU, the oldest first. The time since its last step belongs to the latest change of that direction; the others cancelled
    each other out, or came before the training first began.
    """
    waiting = [(change, 1 if change.by > 0 else -1) for change in changes for _ in range(abs(change.by))]
    for before, begin in zip([None, *stamps], stamps, strict=False):
        if not begin.begin:
            continue
        by, size = begin.ranks - size, begin.ranks
        known = sum(change.at <= begin.at for change, _ in waiting)
        come = next((n for n in range(known, -1, -1) if sum(sign for _, sign in waiting[:n]) == by), 0)
        felt = [change for change, sign in waiting[:come] if sign * by > 0][-abs(by) :] if before else []
        waiting = waiting[come:]
        for change in felt:
            assert before is not None
            change.effective_at = change.effective_at if change.effective_at is not None else max(change.at, before.at)
            change.still += (begin.at - before.at) / len(felt)
            change.left -= 1


def submission_of(lived: JobHistory, costs: Costs) -> Submission:
    """Return the job as it was submitted, with the mean durations as its costs."""
    work, distributed = lived.work, lived.work.distributed
    step = [work.ideal_seconds(n) + costs.overhead(n, distributed) for n in range(1, lived.job.max_gpus + 1)]
    curve = Curve(tuple(step[0] / seconds for seconds in step))
    restart = costs.restart[distributed].mean or costs.start[distributed].mean
    return Submission(
        replace(lived.job, restart_seconds=restart),
        Plain(work.steps * step[0], curve, knowledge="none"),
        start_seconds=costs.start[distributed].mean,
        end_seconds=costs.end[distributed].mean,
        growing=Interruption(costs.notice[True].mean, costs.still[True].mean),
        shrinking=Interruption(costs.notice[False].mean, costs.still[False].mean),
    )


def options_from(costs: Costs) -> Options:
    """Return options with the default damping (``DAMPING_SECONDS``), which the live labs of the bench have too."""
    return Options(release_seconds=costs.give_back.mean, window_seconds=costs.first_cycle.mean, damping_seconds=30.0)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures in seconds over all jobs of a run."""

    turnaround: float
    makespan: float

    @classmethod
    def of(cls, spans: Iterable[tuple[float, float]]) -> "Figures":
        """Compute the figures from the submission and the end of each job."""
        some = list(spans)
        return cls(mean(end - at for at, end in some), max(end for _, end in some) - min(at for at, _ in some))


def relative_error(simulated: float, live: float) -> float:
    """Return the relative error of the simulation."""
    return simulated / live - 1
