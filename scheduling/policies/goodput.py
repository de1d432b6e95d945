"""Useful progress for everybody: Pollux's objective, Sia's integer program."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from scheduling import allot, estimates, placement
from scheduling.allot import Candidate, Question
from scheduling.params import param
from scheduling.rearrange import carry_out, choose, recall, remember, world
from scheduling.types import Job, JobId, Placement, Plan, Snapshot

UNCHANGED = 1e-6
"""Between plans of equal value the one that changes less."""
WAITS = 0.25
"""Waiting counts like this part of the slowest useful speed, so that with p = -0.5 a job without GPUs costs 2 where one
with the least costs 1 (Sia: 1.1; Pollux: 1000, which drowns everything else)."""
MARGIN, HORIZON_SECONDS = 1.5, 600
"""A change must win this many times what it costs within ten minutes, however old the job is."""
COLUMNS = 20_000
"""A larger integer program takes more than a second: then it is solved greedily."""
GAP = 1e-3
NODES = 200
"""The solver is bounded by a gap and by branches, not by a clock: equal snapshots get equal plans."""
ROUNDS = 3
POPULATION, GENERATIONS = 100, 100
CELLS = 30_000_000
"""Of the genetic search in all: fewer generations for more jobs."""


@dataclass(frozen=True, slots=True)
class Option:
    """So many GPUs of one kind for one job. ``kind`` is None where a running job keeps what it holds."""

    gpus: int
    kind: str | None
    use: Mapping[str, int]
    value: float


@dataclass(frozen=True, slots=True)
class Goodput:
    """Pollux (OSDI'21) and Sia (SOSP'23).

    Confirmed (the authors' code): goodput is throughput times statistical efficiency; a job's worth is the power p of
    its goodput relative to its smallest; what changes is multiplied by ``max(age - restarts * cost, 0) / (age + cost)``;
    Sia's program picks one configuration per job, whole powers of two within a node or whole nodes, p = -0.5, and
    growth at most doubles. Reconstruction: the change is also priced over ten minutes; waiting counts like a quarter
    of the slowest speed; claims are weighed by what is left to do (``favour_short``) and by waiting.

    Optimus (EuroSys'18), as a preset: one more GPU to whoever's remaining time falls most by it; the batch stays.
    """

    title: ClassVar[str] = "Most useful progress (Pollux, Sia)"
    explanation: ClassVar[str] = (
        "All jobs share the GPUs so that each makes good progress for its size: a job grows while that helps it more "
        "than it costs the others, with the batch that suits its GPUs, and on the kind of GPU where it gains most. "
        "Changes that would not pay are not made."
    )
    good_for: ClassVar[str] = "short turnaround when jobs are elastic, and several kinds of GPUs"
    needs: ClassVar[str] = "how fast jobs are with more GPUs; how long they are helps"

    preset: str = param(
        "goodput",
        "What to aim at",
        "Good progress for all, or Optimus: the next GPU goes where it saves most of the remaining time, with the batch "
        "as it is (then the fairness, short jobs and batch below do not count).",
        choices=[("goodput", "good progress for all"), ("optimus", "saving remaining time (Optimus)")],
    )
    solver: str = param(
        "ilp",
        "How to search",
        "The integer program is best up to about a thousand jobs; larger ones are solved greedily whatever is chosen.",
        choices=[("ilp", "integer program"), ("greedy", "greedily"), ("genetic", "genetic search, as in Pollux")],
        group="How it searches",
    )
    p: float = param(
        -0.5,
        "Fairness exponent",
        "1: the sum of all progress counts, whoever makes it. Smaller: the slowest count more.",
        least=-10,
        most=1,
        group="What counts",
    )
    favour_short: float = param(
        0.5,
        "Favour short jobs",
        "A job's claim is its remaining work to the power of minus this; work that nobody declared is estimated from "
        "what the job has had so far. 0: length does not count, as in Pollux and Sia.",
        least=0,
        most=1,
        group="What counts",
    )
    waiting_bonus: float = param(
        1.0,
        "Bonus per hour of waiting",
        "A job's claim grows by this part of itself for each hour it has waited, so that nobody waits for ever.",
        least=0,
        most=100,
    )
    batch: str = param(
        "chosen",
        "Batch size",
        "Whether the batch of jobs that allow it is chosen together with their GPUs.",
        choices=[("chosen", "chosen with the GPUs"), ("asked", "as its owner asked")],
    )
    period_seconds: int = param(
        60,
        "Seconds between decisions",
        "When no job comes or ends, GPUs are shared out anew only after this long.",
        least=0,
        most=86_400,
        group="How it searches",
    )

    def plan(self, snapshot: Snapshot) -> Plan:
        question = allot.ask(snapshot)
        order = question.order
        if aim := recall(snapshot, self.period_seconds):
            again_at = snapshot.state["at"] + self.period_seconds
            return carry_out(snapshot, order, aim[0], question.why, snapshot.state, aim[1], again_at)
        program = Program(self, snapshot, question)
        chosen = program.solve(self.solver)
        wanted = {job.id: job.gpus for job in question.held}
        wanted.update({worth.job.id: option.gpus for worth, option in zip(program.worths, chosen, strict=True)})
        kinds = {
            worth.job.id: option.kind
            for worth, option in zip(program.worths, chosen, strict=True)
            if option.kind is not None
        }
        target = choose(snapshot, order, wanted, program.worth, kinds)
        batches = {
            job.id: size
            for job in order
            if self.free_batch and (size := estimates.batch(job, placement.total(target.get(job.id, {}))))
        }
        again_at = snapshot.now + self.period_seconds if self.period_seconds and question.candidates else None
        return carry_out(snapshot, order, target, question.why, remember(snapshot, target, batches), batches, again_at)

    @property
    def free_batch(self) -> bool:
        return self.batch == "chosen" and self.preset != "optimus"

    def claim(self, job: Job, now: float) -> float:
        """How much its progress counts. What it waited stays when it runs, or it would be stopped again."""
        weight = job.weight * 2.0 ** max(-10, min(10, job.priority))
        left = max(1.0, estimates.work(job).value)
        if self.preset == "optimus":
            return float(weight * left)
        waited = max(0.0, now - job.submitted_at - job.run_seconds)
        return float(weight * left**-self.favour_short * (1 + self.waiting_bonus * waited / 3600))

    def utility(self, speed: float) -> float:
        """Of a relative speed, which is 1 for the smallest useful configuration; 0 is waiting."""
        if self.preset == "optimus":
            return -1 / max(speed, 1e-3)
        if self.p > 0:
            return float(speed**self.p)
        speed = max(speed, WAITS)
        return float(np.log(speed) if self.p == 0 else -(speed**self.p))


class Worth:
    """What one job has from GPUs, by count and kind."""

    def __init__(self, policy: Goodput, candidate: Candidate, now: float, fleet: "Fleet") -> None:
        self.policy, self.candidate, self.job, self.fleet = policy, candidate, candidate.job, fleet
        job = self.job
        known = estimates.curve(job, free_batch=policy.free_batch)
        self.speeds = allot.speeds(job, candidate.most, free_batch=policy.free_batch)
        self.reach = candidate.most if known else max(candidate.least, job.asked if job.waiting else 2 * job.gpus)
        """Nobody knows how such a job scales: it is tried with at most twice as many GPUs at a time."""
        self.factor = {kind: known.kinds.get(kind, 1.0) if known else 1.0 for kind in fleet.sizes}
        self.apart = known.apart if known else 1.0
        self.claim = policy.claim(job, now)
        self.kept = self._kept(now)
        least = estimates.speed(job, job.min_gpus, free_batch=policy.free_batch)
        self.slowest = min((least * factor for factor in self.factor.values() if least * factor > 0), default=1.0)

    def _kept(self, now: float) -> float:
        """The part of its progress that a change leaves of it."""
        job = self.job
        if not job.running:
            return 1.0
        cost = job.resize_seconds if job.elastic else job.restart_seconds
        priced = max(0.0, 1 - MARGIN * cost / HORIZON_SECONDS)
        age = now - job.submitted_at
        past = max(age - job.restarts * cost, 0.0) / (age + cost) if age > cost else 1.0
        return min(priced, max(past, 0.1))

    def _of(self, speed: float) -> float:
        return self.claim * self.policy.utility(speed / self.slowest)

    def options(self) -> list[Option]:
        """By number of GPUs: the first is no GPUs, or its least if it cannot be stopped."""
        job, found = self.job, []
        if self.candidate.may_have_none:
            found.append(Option(0, None, {}, self.value({})))
        if job.running:
            found.append(Option(job.gpus, None, self.fleet.use(job.now_on), self.value(job.now_on)))
            if not job.elastic:
                return found
        at = self.fleet.kind_of(job)
        for kind in self.fleet.kinds_for(job):
            moves = job.running and kind != at
            if moves and not job.preemptible:
                continue
            cap = min(self.reach, self.candidate.most, self.fleet.room(job, kind))
            best = -1.0
            for count in self._counts(kind, cap):
                speed = float(self.speeds[count]) * self.factor[kind]
                if job.running and not moves and count == job.gpus:
                    continue
                if speed <= best and self.candidate.may_have_none:
                    continue
                best = max(best, speed)
                found.append(Option(count, kind, {kind: count}, self._of(speed * self.kept)))
        return sorted(found, key=lambda option: option.gpus)

    def _counts(self, kind: str, cap: int) -> Sequence[int]:
        if self.policy.preset == "optimus":
            return range(self.candidate.least, cap + 1)
        return self.fleet.counts(kind, self.candidate.least, cap)

    def value(self, where: Placement) -> float:
        """Of the GPUs it really is to have."""
        job, count = self.job, placement.total(where)
        if not count:
            return self._of(0.0) - (self._lost() if job.running else 0.0)
        speed = float(self.speeds[min(count, len(self.speeds) - 1)]) * self.fleet.slowest(self.factor, where)
        if self.apart != 1.0 and not self.fleet.together(where):
            speed *= self.apart
        if job.running:
            speed *= 1 + UNCHANGED if where == job.now_on else self.kept
        return self._of(speed)

    def _lost(self) -> float:
        """A job that is stopped has to start again one day."""
        return abs(self._of(float(self.speeds[min(self.job.gpus, len(self.speeds) - 1)])) - self._of(0.0)) * (
            MARGIN * self.job.restart_seconds / HORIZON_SECONDS
        )


class Fleet:
    """The nodes by kind: what there is to be shared out of each."""

    def __init__(self, snapshot: Snapshot, question: Question) -> None:
        nodes = question.later.nodes
        self.kind = {node.id: node.kind for node in snapshot.nodes}
        self.total: dict[str, int] = defaultdict(int)
        self.sizes: dict[str, int] = defaultdict(int)
        self.gpus: dict[str, int] = defaultdict(int)
        for view in nodes.values():
            self.total[view.kind] += view.total
            self.sizes[view.kind] = max(self.sizes[view.kind], view.total)
            self.gpus[view.kind] += question.later.free[view.id]
        for candidate in question.candidates:
            for node, gpus in candidate.job.now_on.items():
                self.gpus[self.kind[node]] += gpus
        self.nodes = nodes
        self.kinds = sorted(kind for kind, size in self.sizes.items() if size)
        self._counts: dict[str, list[int]] = {}

    def use(self, where: Placement) -> dict[str, int]:
        used: dict[str, int] = defaultdict(int)
        for node, gpus in where.items():
            used[self.kind[node]] += gpus
        return used

    def kind_of(self, job: Job) -> str | None:
        kinds = {self.kind[node] for node in job.now_on}
        return kinds.pop() if len(kinds) == 1 else None

    def kinds_for(self, job: Job) -> Sequence[str]:
        if job.nodes is None:
            return self.kinds
        usable = {self.kind[node] for node in job.nodes if node in self.nodes} | {
            self.kind[node] for node in job.now_on
        }
        return [kind for kind in self.kinds if kind in usable]

    def room(self, job: Job, kind: str) -> int:
        if job.nodes is not None:
            totals = [self.nodes[node].total for node in job.nodes if node in self.nodes and self.kind[node] == kind]
            return sum(totals) if job.spread else max(totals, default=0)
        return self.total[kind] if job.spread else self.sizes[kind]

    def counts(self, kind: str, least: int, most: int) -> list[int]:
        """Powers of two within a node and whole nodes: they always fit together. And the least, whatever it is."""
        if kind not in self._counts:
            size = self.sizes[kind]
            within = [1 << bit for bit in range(size.bit_length()) if 1 << bit <= size]
            self._counts[kind] = sorted({*within, *range(size, self.total[kind] + 1, size)})
        found = [count for count in self._counts[kind] if least < count <= most]
        return [least, *found] if least <= most else found

    def slowest(self, factor: Mapping[str, float], where: Placement) -> float:
        """A step is as slow as its slowest part."""
        return min((factor.get(self.kind[node], 1.0) for node in where), default=1.0)

    def together(self, where: Placement) -> bool:
        size = max(self.sizes[self.kind[node]] for node in where) or 1
        return len(where) <= -(-placement.total(where) // size)


class Program:
    """One option per job, at most so many GPUs per kind and limit, the largest sum of values."""

    def __init__(self, policy: Goodput, snapshot: Snapshot, question: Question) -> None:
        self.policy, self.snapshot, self.question = policy, snapshot, question
        self.fleet = Fleet(snapshot, question)
        self.worths = [Worth(policy, candidate, snapshot.now, self.fleet) for candidate in question.candidates]
        self.options = [worth.options() for worth in self.worths]
        self.row_of = {kind: row for row, kind in enumerate(self.fleet.kinds)}
        self.room = [self.fleet.gpus[kind] for kind in self.fleet.kinds]
        self.limits = self._limits()

    def _limits(self) -> dict[JobId, list[int]]:
        """Which rows each limited job counts in; a limit that is exceeded already only forbids more."""
        found: dict[JobId, list[int]] = defaultdict(list)
        later = self.question.later
        known = {worth.job.id: worth.job for worth in self.worths}
        for limit in later.limits:
            others = sum(placement.total(later.held.get(id, {})) for id in limit.jobs if id not in known)
            held = sum(known[id].gpus for id in limit.jobs if id in known)
            self.room.append(max(limit.max_gpus - others, held))
            for id in limit.jobs:
                found[id].append(len(self.room) - 1)
            if held > limit.max_gpus - others:
                self.options = [
                    [option for option in options if option.gpus <= worth.job.gpus or worth.job.id not in limit.jobs]
                    for worth, options in zip(self.worths, self.options, strict=True)
                ]
        return found

    def worth(self, target: Mapping[JobId, Placement]) -> float:
        return sum(worth.value(target.get(worth.job.id, {})) for worth in self.worths)

    def solve(self, solver: str) -> list[Option]:
        """For each candidate the option that is best for all together."""
        if not self.worths:
            return []
        columns = sum(map(len, self.options))
        greedy = solver == "greedy" or self.policy.preset == "optimus" or columns > COLUMNS
        picks = None
        if solver == "genetic" and not greedy:
            picks = Genetic(self).search([self.stay(), self.greedy()])
        elif not greedy:
            picks = self.exactly()
        if picks is None:
            picks = self.greedy()
        return [options[pick] for options, pick in zip(self.options, picks, strict=True)]

    def stay(self) -> list[int]:
        """Everybody keeps what it has."""
        now = [(worth.job.gpus, None) for worth in self.worths]
        return [
            next(pick for pick, option in enumerate(options) if (option.gpus, option.kind) == held)
            for options, held in zip(self.options, now, strict=True)
        ]

    def uses(self, number: int, option: Option) -> list[tuple[int, int]]:
        """GPUs by row."""
        used = [(self.row_of[kind], gpus) for kind, gpus in option.use.items() if gpus]
        limits = self.limits.get(self.worths[number].job.id, ())
        return used + [(row, option.gpus) for row in limits if option.gpus]

    def exactly(self) -> list[int] | None:
        """Sia's integer program, by HiGHS. None when it found nothing within its bounds."""
        values: list[float] = []
        starts = [0]
        entries: list[tuple[int, int, float]] = []
        jobs = len(self.worths)
        for number, options in enumerate(self.options):
            for option in options:
                column = len(values)
                values.append(option.value)
                entries.append((number, column, 1.0))
                entries += [(jobs + row, column, float(gpus)) for row, gpus in self.uses(number, option)]
            starts.append(len(values))
        rows, columns, numbers = zip(*entries, strict=True)
        matrix = csr_matrix((numbers, (rows, columns)), shape=(jobs + len(self.room), len(values)))
        least = np.concatenate((np.ones(jobs), np.full(len(self.room), -np.inf)))
        most = np.concatenate((np.ones(jobs), self.room))
        scale = max(1e-12, float(np.abs(values).max()))
        found = milp(
            -np.array(values) / scale,
            integrality=np.ones(len(values)),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, least, most),
            # Presolving takes longer than it saves here, and may write to the output of the program.
            options={"mip_rel_gap": GAP, "node_limit": NODES, "presolve": False},
        )
        if found.x is None:
            return None
        picked = np.flatnonzero(found.x > 0.5)
        return [int(column) - start for column, start in zip(picked, starts, strict=False)]

    def greedy(self) -> list[int]:
        """Whoever gains most per GPU gets more, one step of its concave hull at a time.

        A job that keeps what it has is a step like any other; the first step decides of which kind its GPUs are.
        """
        picks = [0] * len(self.worths)
        room = list(self.room)
        for number, options in enumerate(self.options):
            self._use(room, number, options[0], 1)
        heap = [entry for number in range(len(picks)) if (entry := self._step(number, 0))]
        heapify(heap)
        while heap:
            _, number, pick = heappop(heap)
            options = self.options[number]
            self._use(room, number, options[picks[number]], -1)
            if all(room[row] >= gpus for row, gpus in self.uses(number, options[pick])):
                picks[number] = pick
            self._use(room, number, options[picks[number]], 1)
            if picks[number] == pick:
                entry = self._step(number, pick)
            else:
                entry = self._step(number, picks[number], below=options[pick].gpus)
            if entry:
                heappush(heap, entry)
        self._polish(picks, room)
        return picks

    def _polish(self, picks: list[int], room: list[int]) -> None:
        """One job after the other takes the best option that the others leave: another kind, mostly."""
        for _ in range(ROUNDS):
            before = list(picks)
            for number, options in enumerate(self.options):
                self._use(room, number, options[picks[number]], -1)
                for other in sorted(range(len(options)), key=lambda other: -options[other].value):
                    if other == picks[number]:
                        break
                    if all(room[row] >= gpus for row, gpus in self.uses(number, options[other])):
                        picks[number] = other
                        break
                self._use(room, number, options[picks[number]], 1)
            if picks == before:
                return

    def _use(self, room: list[int], number: int, option: Option, sign: int) -> None:
        for row, gpus in self.uses(number, option):
            room[row] -= sign * gpus

    def _step(self, number: int, pick: int, below: int = 1 << 30) -> tuple[float, int, int] | None:
        """The next option with more GPUs (of its kind, once it has one) that gains most per GPU."""
        options = self.options[number]
        here = options[pick]
        best: tuple[float, int, int] | None = None
        for other, option in enumerate(options):
            more = option.gpus - here.gpus
            same = not here.gpus or here.use.keys() == option.use.keys()
            if more > 0 and option.gpus < below and same and option.value > here.value:
                entry = (-(option.value - here.value) / more, number, other)
                best = entry if best is None or entry < best else best
        return best


class Genetic:
    """Pollux's search, over options instead of nodes: placing is done later, and for all policies alike.

    It begins with the present and the greedy plan. Begun with nothing, as published, it was far below greedy from about
    40 jobs on: with p = -1 each job that it leaves without GPUs costs more than all others can gain.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        jobs = len(program.options)
        most = max(map(len, program.options))
        self.sizes = np.array([len(options) for options in program.options])
        self.values = np.full((jobs, most), -np.inf)
        self.use = np.zeros((len(program.room), jobs, most))
        for number, options in enumerate(program.options):
            for pick, option in enumerate(options):
                self.values[number, pick] = option.value
                for row, gpus in program.uses(number, option):
                    self.use[row, number, pick] += gpus
        self.room = np.array(program.room, dtype=float)
        seed = int(world(program.snapshot), 16) ^ int(program.snapshot.now)
        self.dice = np.random.default_rng(seed)

    def search(self, seeds: Sequence[Sequence[int]], generations: int = GENERATIONS) -> list[int]:
        jobs = len(self.sizes)
        generations = min(generations, CELLS // (POPULATION * jobs) + 1)
        alive = np.array([seeds[number % len(seeds)] for number in range(POPULATION)], dtype=np.int64)
        for _ in range(generations):
            mothers, fathers = self.dice.permutation(alive), self.dice.permutation(alive)
            cut = self.dice.integers(0, jobs + 1, size=(POPULATION, 1))
            children = np.where(np.arange(jobs) < cut, mothers, fathers)
            other = self.dice.integers(0, self.sizes, size=children.shape)
            children = np.where(self.dice.random(children.shape) < max(0.02, 1 / jobs), other, children)
            everybody = np.concatenate((alive, self.repaired(children)))
            fittest = np.argsort(-self.fitness(everybody), kind="stable")[:POPULATION]
            alive = everybody[fittest]
        return [int(pick) for pick in alive[0]]

    def fitness(self, picks: NDArray[Any]) -> NDArray[Any]:
        jobs = np.arange(picks.shape[1])
        worth = self.values[jobs, picks].sum(axis=1)
        over = sum((self.use[row][jobs, picks].sum(axis=1) > room).astype(float) for row, room in enumerate(self.room))
        return np.where(np.asarray(over) > 0, -np.inf, worth)

    def repaired(self, picks: NDArray[Any]) -> NDArray[Any]:
        """Jobs in a random order keep what they drew while there is room; the others fall back to their least."""
        jobs = np.arange(picks.shape[1])
        order = self.dice.permuted(np.broadcast_to(jobs, picks.shape), axis=1)
        fine = np.ones(picks.shape, dtype=bool)
        for row, room in enumerate(self.room):
            least = self.use[row][:, 0]
            extra = np.maximum(self.use[row][jobs, picks] - least, 0)
            used = np.cumsum(np.take_along_axis(extra, order, axis=1), axis=1)
            late = np.take_along_axis(used > room - least.sum(), np.argsort(order, axis=1), axis=1)
            fine &= ~late | (extra == 0)
        return np.where(fine, picks, 0)
