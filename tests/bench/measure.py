"""From what the real product did with jobs of known steps to what a simulation of it needs to know.

Rows tell when GPUs were given, asked back and free; the jobs' logs when each step was done, on how many ranks. Of both
come mean costs, the same for all jobs, and with these the simulator is told the jobs as they were submitted: neither
how long a job really took nor what was decided about it goes into the comparison.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, median

from scheduling.simulate import Interruption, Options, Plain, Submission
from scheduling.types import Curve, Job

STAMP = re.compile(r"^(begin|step \d+) on (\d+) at (\d+\.\d+)$", re.MULTILINE)
AT_ONCE = 1.0
"""Seconds: what was given or asked back within this was one decision."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a job does: so many steps, each a sleep of ``step_seconds`` shared among its ranks, and what they say."""

    steps: int
    step_seconds: float
    ring: bool

    def ideal(self, ranks: int) -> float:
        return self.step_seconds / ranks


@dataclass(frozen=True, slots=True)
class Stamp:
    """A step that was done, or the ring that began (anew)."""

    at: float
    ranks: int
    begin: bool


@dataclass(frozen=True, slots=True)
class Held:
    """One GPU of an attempt."""

    since: float
    asked_back: float | None
    until: float


@dataclass(frozen=True, slots=True)
class Lived:
    """What became of a job. ``job`` is what the policy saw of it in the first turn after it came."""

    job: Job
    work: Work
    ended: float
    first_turn: float
    attempts: Sequence[Sequence[Held]]
    stamps: Sequence[Stamp]

    @property
    def turnaround(self) -> float:
        return self.ended - self.job.submitted_at

    def tries(self) -> list[tuple[Sequence[Held], list[Stamp]]]:
        """Each attempt with what was said in it."""
        starts = [min(gpu.since for gpu in held) for held in self.attempts]
        edges = [*starts[1:], float("inf")]
        return [
            (held, [stamp for stamp in self.stamps if start <= stamp.at < edge])
            for held, start, edge in zip(self.attempts, starts, edges, strict=True)
        ]


@dataclass
class Change:
    """A decision to give a running job more GPUs, or fewer."""

    at: float
    by: int
    left: int = 0
    """Ranks that have not come, or gone, yet."""
    heeded: float | None = None
    still: float = 0.0

    def __post_init__(self) -> None:
        self.left = abs(self.by)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds, each measured."""

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
    """What things took, over all jobs of one run. By ``True`` of rings, by ``False`` of plain commands."""

    turn: Cost
    """From a submission to its first turn."""
    start: Mapping[bool, Cost]
    """From being given GPUs to the beginning of the first step."""
    restart: Mapping[bool, Cost]
    """The same in later attempts."""
    end: Mapping[bool, Cost]
    """From the last step to the last GPU being free."""
    give_back: Cost
    """From asking to being free, while the job goes on or has to wait."""
    notice: Mapping[bool, Cost]
    """From a decision to the last step before it is felt; by ``True`` of growing, by ``False`` of shrinking."""
    still: Mapping[bool, Cost]
    step: Mapping[int, Cost] = field(default_factory=dict)
    """What a step takes beyond its sleep, by ranks; 0 stands for a plain command."""
    unmatched: int = 0
    """Changes that were never felt: taken back, or the job ended first."""
    vain: int = 0
    """Attempts that ended before their first step. The simulator knows of no such trouble."""

    def overhead(self, ranks: int, ring: bool) -> float:
        """Of a size that was not seen, as of the nearest."""
        if not ring:
            return self.step[0].mean if 0 in self.step else 0.0
        seen = [size for size in self.step if size]
        return self.step[min(seen, key=lambda size: (abs(size - ranks), size))].mean if seen else 0.0

    def lines(self) -> list[str]:
        names = {True: "ring", False: "plain"}
        rows = [("submission -> its first turn", self.turn)]
        rows += [(f"given GPUs -> first step, {names[ring]}", self.start[ring]) for ring in (False, True)]
        rows += [(f"the same after a stop, {names[ring]}", self.restart[ring]) for ring in (False, True)]
        rows += [(f"last step -> GPUs free, {names[ring]}", self.end[ring]) for ring in (False, True)]
        rows += [("asked back -> free", self.give_back)]
        for grows, name in ((True, "growing"), (False, "shrinking")):
            rows += [(f"{name}: trains on as before", self.notice[grows]), (f"{name}: stands still", self.still[grows])]
        rows += [
            (f"a step beyond its sleep, {f'{size} ranks' if size else 'plain'}", self.step[size])
            for size in sorted(self.step)
        ]
        return [f"{name}: {cost}" for name, cost in rows]


def stamps_of(text: str) -> list[Stamp]:
    """What a job of the bench has said, whichever rank said it."""
    said = [Stamp(float(at), int(ranks), what == "begin") for what, ranks, at in STAMP.findall(text)]
    return sorted(said, key=lambda stamp: stamp.at)


def measure(jobs: Iterable[Lived]) -> Costs:
    start: dict[bool, list[float]] = {True: [], False: []}
    restart: dict[bool, list[float]] = {True: [], False: []}
    end: dict[bool, list[float]] = {True: [], False: []}
    notice: dict[bool, list[float]] = {True: [], False: []}
    still: dict[bool, list[float]] = {True: [], False: []}
    steps: dict[int, list[float]] = defaultdict(list)
    turns, back, unmatched, vain = [], [], 0, 0
    for job in jobs:
        turns.append(job.first_turn - job.job.submitted_at)
        ring, has_begun = job.work.ring, False
        for number, (held, said) in enumerate(job.tries()):
            began = next((stamp for stamp in said if stamp.begin), None)
            if began is None:
                vain += 1
                continue
            (restart if has_begun else start)[ring].append(began.at - min(gpu.since for gpu in held))
            has_begun = True
            over = said[-1].at
            if number < len(job.attempts) - 1:
                over = stopped_at(held)
            else:
                end[ring].append(job.ended - over)
            back += [
                gpu.until - gpu.asked_back for gpu in held if gpu.asked_back is not None and gpu.asked_back <= over
            ]
            for size, seconds in step_lengths(said):
                steps[size if ring else 0].append(seconds - job.work.ideal(size))
            changes = changes_of(held, over)
            match(changes, said, size_of(held))
            for change in changes:
                if change.heeded is None or change.left:
                    unmatched += 1
                else:
                    notice[change.by > 0].append(change.heeded - change.at)
                    still[change.by > 0].append(change.still)
    return Costs(
        turn=Cost(tuple(turns)),
        start=_costs(start),
        restart=_costs(restart),
        end=_costs(end),
        give_back=Cost(tuple(back)),
        notice=_costs(notice),
        still=_costs(still),
        step={size: Cost(tuple(seconds)) for size, seconds in steps.items()},
        unmatched=unmatched,
        vain=vain,
    )


def _costs(found: Mapping[bool, Sequence[float]]) -> dict[bool, Cost]:
    return {key: Cost(tuple(seconds)) for key, seconds in found.items()}


def step_lengths(said: Sequence[Stamp]) -> Iterable[tuple[int, float]]:
    """Ranks and seconds of each step that nothing interrupted."""
    for before, stamp in zip(said, said[1:], strict=False):
        if not stamp.begin and before.ranks == stamp.ranks:
            yield stamp.ranks, stamp.at - before.at


def stopped_at(held: Sequence[Held]) -> float:
    """When the last of its GPUs were asked back."""
    return max(gpu.until if gpu.asked_back is None else gpu.asked_back for gpu in held)


def size_of(held: Sequence[Held]) -> int:
    """GPUs given at the start."""
    first = min(gpu.since for gpu in held)
    return sum(gpu.since <= first + AT_ONCE for gpu in held)


def changes_of(held: Sequence[Held], over: float) -> list[Change]:
    """What was decided about a running attempt before it was over, oldest first."""
    first = min(gpu.since for gpu in held)
    moves = [(gpu.since, 1) for gpu in held if gpu.since > first + AT_ONCE]
    moves += [(gpu.asked_back, -1) for gpu in held if gpu.asked_back is not None and gpu.asked_back < over - AT_ONCE]
    changes: list[Change] = []
    for at, by in sorted(moves):
        if changes and at - changes[-1].at < AT_ONCE and (changes[-1].by > 0) == (by > 0):
            changes[-1] = Change(changes[-1].at, changes[-1].by + by)
        else:
            changes.append(Change(at, by))
    return changes


def match(changes: Sequence[Change], said: Sequence[Stamp], size: int) -> None:
    """Finds out when each change was felt, and how long the ring stood still for it. ``size`` is that at the start.

    A ring that begins anew says on how many ranks: as many changes have come by then as can explain it, GPU by GPU, the
    oldest first. What passed since its last step belongs to the latest of that direction; the others cancelled each other out,
    or came before the ring first began.
    """
    waiting = [(change, 1 if change.by > 0 else -1) for change in changes for _ in range(abs(change.by))]
    for before, begin in zip([None, *said], said, strict=False):
        if not begin.begin:
            continue
        by, size = begin.ranks - size, begin.ranks
        known = sum(change.at <= begin.at for change, _ in waiting)
        come = next((n for n in range(known, -1, -1) if sum(sign for _, sign in waiting[:n]) == by), 0)
        felt = [change for change, sign in waiting[:come] if sign * by > 0][-abs(by) :] if before else []
        waiting = waiting[come:]
        for change in felt:
            assert before is not None
            change.heeded = change.heeded if change.heeded is not None else max(change.at, before.at)
            change.still += (begin.at - before.at) / len(felt)
            change.left -= 1


def submission(lived: Lived, costs: Costs) -> Submission:
    """The job as it was submitted, in a world where everything takes as long as it took on average."""
    work, ring = lived.work, lived.work.ring
    step = [work.ideal(n) + costs.overhead(n, ring) for n in range(1, lived.job.max_gpus + 1)]
    curve = Curve(tuple(step[0] / seconds for seconds in step))
    restart = costs.restart[ring].mean or costs.start[ring].mean
    return Submission(
        replace(lived.job, restart_seconds=restart),
        Plain(work.steps * step[0], curve, knowledge="none"),
        start_seconds=costs.start[ring].mean,
        end_seconds=costs.end[ring].mean,
        growing=Interruption(costs.notice[True].mean, costs.still[True].mean),
        shrinking=Interruption(costs.notice[False].mean, costs.still[False].mean),
    )


def options(costs: Costs) -> Options:
    """With the product's default damping (``DAMPING_SECONDS``), which the live labs of the bench have too."""
    return Options(release_seconds=costs.give_back.mean, window_seconds=costs.turn.mean, damping_seconds=30.0)


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds over all jobs of a run."""

    turnaround: float
    makespan: float

    @classmethod
    def of(cls, spans: Iterable[tuple[float, float]]) -> "Figures":
        """Of when each job was submitted and when it ended."""
        some = list(spans)
        return cls(mean(end - at for at, end in some), max(end for _, end in some) - min(at for at, _ in some))


def off(simulated: float, live: float) -> float:
    """By which part the simulation is off."""
    return simulated / live - 1
