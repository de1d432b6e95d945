"""Chooses one option for each job with the largest sum of values: exactly, greedily, or by a genetic search.

The exact solution is a table over jobs and GPUs where all GPUs are of one kind and the result keeps all limits, which is
the usual case; otherwise it is Sia's integer program. On 64 GPUs the table takes about a third of the time of the
program, and it is exact where the program stops at a gap.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from scheduling.optimise.allocation_search import AllocationProblem
from scheduling.optimise.gain import Fleet, JobGain, Option, Preferences
from scheduling.toolkit import placement
from scheduling.toolkit.target_plan import world_digest
from scheduling.types import JobId, Placement, Snapshot

MAX_COLUMNS = 20_000
"""The largest integer program: a larger one takes more than a second, and is solved greedily."""
MAX_TABLE_CELLS = 30_000_000
"""The largest table: a larger one takes more than half a second, and the integer program is faster."""
MAX_RELATIVE_GAP = 1e-3
MAX_BRANCHES = 200
"""The solver is bounded by a gap and a number of branches, not by time: equal snapshots give equal plans."""
IMPROVEMENT_ROUNDS = 3
POPULATION, GENERATIONS = 100, 100
MAX_SEARCH_CELLS = 30_000_000
"""The work of one genetic search: fewer generations for more jobs."""


class Program:
    """One option per job with the largest sum of values, within the GPUs of each kind and of each limit."""

    def __init__(self, policy: Preferences, snapshot: Snapshot, problem: AllocationProblem) -> None:
        self.policy, self.snapshot, self.problem = policy, snapshot, problem
        self.fleet = Fleet(snapshot, problem)
        self.gains = [JobGain(policy, candidate, snapshot.now, self.fleet) for candidate in problem.candidates]
        self.options = [gain.options() for gain in self.gains]
        self.row_of = {kind: row for row, kind in enumerate(self.fleet.kinds)}
        self.room = [self.fleet.gpus[kind] for kind in self.fleet.kinds]
        self.limits = self._limits()

    def _limits(self) -> dict[JobId, list[int]]:
        """Return the rows in which each limited job counts; a limit that is exceeded already only forbids more."""
        found: dict[JobId, list[int]] = defaultdict(list)
        later = self.problem.later
        known = {gain.job.id: gain.job for gain in self.gains}
        for limit in later.limits:
            others = sum(placement.total(later.held.get(id, {})) for id in limit.jobs if id not in known)
            held = sum(known[id].gpus for id in limit.jobs if id in known)
            self.room.append(max(limit.max_gpus - limit.elsewhere - others, held))
            for id in limit.jobs:
                found[id].append(len(self.room) - 1)
            if held > limit.max_gpus - limit.elsewhere - others:
                self.options = [
                    [option for option in options if option.gpus <= gain.job.gpus or gain.job.id not in limit.jobs]
                    for gain, options in zip(self.gains, self.options, strict=True)
                ]
        return found

    def total_value(self, target: Mapping[JobId, Placement]) -> float:
        return sum(gain.value(target.get(gain.job.id, {})) for gain in self.gains)

    def solve(self, solver: str) -> list[Option]:
        """Return, for each candidate, the option of the best solution."""
        if not self.gains:
            return []
        columns = sum(map(len, self.options))
        greedy = solver == "greedy" or self.policy.preset == "optimus" or columns > MAX_COLUMNS
        picks = None
        if solver == "genetic" and not greedy:
            picks = GeneticSearch(self).search([self.current_picks(), self.solve_greedily()])
        elif not greedy:
            picks = self.solve_by_table() or self.solve_exactly()
        if picks is None:
            picks = self.solve_greedily()
        return [options[pick] for options, pick in zip(self.options, picks, strict=True)]

    def current_picks(self) -> list[int]:
        """Return the options with which all jobs keep what they have."""
        now = [(gain.job.gpus, None) for gain in self.gains]
        return [
            next(pick for pick, option in enumerate(options) if (option.gpus, option.kind) == held)
            for options, held in zip(self.options, now, strict=True)
        ]

    def uses(self, number: int, option: Option) -> list[tuple[int, int]]:
        """Return the GPUs that an option uses, by row."""
        used = [(self.row_of[kind], gpus) for kind, gpus in option.use.items() if gpus]
        limits = self.limits.get(self.gains[number].job.id, ())
        return used + [(row, option.gpus) for row in limits if option.gpus]

    def solve_by_table(self) -> list[int] | None:
        """Return the best options by ``best[k] = max over options of before[k - gpus] + value``, job by job.

        None where that does not apply: several kinds of GPUs, a result that exceeds a limit, or too large a table. Of
        equal sums it takes the one that gives the later job fewer GPUs.
        """
        room = self.room[0] if len(self.fleet.kinds) == 1 else -1
        if room < 0 or sum(map(len, self.options)) * (room + 1) > MAX_TABLE_CELLS:
            return None
        best = np.zeros(room + 1)
        chosen = np.zeros((len(self.options), room + 1), np.uint16)
        for number, options in enumerate(self.options):
            gpus = np.array([option.gpus for option in options])
            values = np.array([option.value for option in options])
            maximum = int(gpus.max())
            shifted = sliding_window_view(np.concatenate((np.full(maximum, -np.inf), best)), room + 1)
            sums = shifted[maximum - gpus]
            sums += values[:, None]
            chosen[number] = sums.argmax(axis=0)
            best = np.take_along_axis(sums, chosen[number, None].astype(np.intp), axis=0)[0]
        if best[room] == -np.inf:
            return None
        picks = [0] * len(self.options)
        for number in reversed(range(len(picks))):
            picks[number] = int(chosen[number, room])
            room -= self.options[number][picks[number]].gpus
        return picks if self._keeps_limits(picks) else None

    def _keeps_limits(self, picks: Sequence[int]) -> bool:
        room = list(self.room)
        for number, (options, pick) in enumerate(zip(self.options, picks, strict=True)):
            self._use(room, number, options[pick], 1)
        return min(room) >= 0

    def solve_exactly(self) -> list[int] | None:
        """Solve Sia's integer program with HiGHS. None when it found nothing within its bounds."""
        values: list[float] = []
        starts = [0]
        entries: list[tuple[int, int, float]] = []
        jobs = len(self.gains)
        for number, options in enumerate(self.options):
            for option in options:
                column = len(values)
                values.append(option.value)
                entries.append((number, column, 1.0))
                entries += [(jobs + row, column, float(gpus)) for row, gpus in self.uses(number, option)]
            starts.append(len(values))
        rows, columns, numbers = zip(*entries, strict=True)
        matrix = csr_matrix((numbers, (rows, columns)), shape=(jobs + len(self.room), len(values)))
        minimum = np.concatenate((np.ones(jobs), np.full(len(self.room), -np.inf)))
        maximum = np.concatenate((np.ones(jobs), self.room))
        scale = max(1e-12, float(np.abs(values).max()))
        found = milp(
            -np.array(values) / scale,
            integrality=np.ones(len(values)),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, minimum, maximum),
            # Presolving takes longer than it saves here, and may write to the output of the program.
            options={"mip_rel_gap": MAX_RELATIVE_GAP, "node_limit": MAX_BRANCHES, "presolve": False},
        )
        if found.x is None:
            return None
        picked = np.flatnonzero(found.x > 0.5)
        return [int(column) - start for column, start in zip(picked, starts, strict=False)]

    def solve_greedily(self) -> list[int]:
        """Give GPUs to the job with the largest gain per GPU, one step of its concave hull at a time.

        Keeping what a job has is a step like any other; the first step decides the kind of its GPUs.
        """
        picks = [0] * len(self.gains)
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
        self._improve_greedy(picks, room)
        return picks

    def _improve_greedy(self, picks: list[int], room: list[int]) -> None:
        """Let one job after the other take the best option that the others leave, usually another kind of GPU."""
        for _ in range(IMPROVEMENT_ROUNDS):
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
        """Return the option with more GPUs (of its kind, once it has one) and the largest gain per GPU."""
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


class GeneticSearch:
    """The genetic search of Pollux, over options instead of nodes: placement comes later, the same for all policies.

    It starts from the current and the greedy plan. Started from nothing, as published, it was far worse than greedy from
    about 40 jobs on: with p = -1 each job without GPUs costs more than all others can gain.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        jobs = len(program.options)
        maximum = max(map(len, program.options))
        self.sizes = np.array([len(options) for options in program.options])
        self.values = np.full((jobs, maximum), -np.inf)
        self.use = np.zeros((len(program.room), jobs, maximum))
        for number, options in enumerate(program.options):
            for pick, option in enumerate(options):
                self.values[number, pick] = option.value
                for row, gpus in program.uses(number, option):
                    self.use[row, number, pick] += gpus
        self.room = np.array(program.room, dtype=float)
        seed = int(world_digest(program.snapshot), 16) ^ int(program.snapshot.now)
        self.rng = np.random.default_rng(seed)

    def search(self, seeds: Sequence[Sequence[int]], generations: int = GENERATIONS) -> list[int]:
        jobs = len(self.sizes)
        generations = min(generations, MAX_SEARCH_CELLS // (POPULATION * jobs) + 1)
        alive = np.array([seeds[number % len(seeds)] for number in range(POPULATION)], dtype=np.int64)
        for _ in range(generations):
            mothers, fathers = self.rng.permutation(alive), self.rng.permutation(alive)
            cut = self.rng.integers(0, jobs + 1, size=(POPULATION, 1))
            children = np.where(np.arange(jobs) < cut, mothers, fathers)
            other = self.rng.integers(0, self.sizes, size=children.shape)
            children = np.where(self.rng.random(children.shape) < max(0.02, 1 / jobs), other, children)
            combined = np.concatenate((alive, self.repair(children)))
            fittest = np.argsort(-self.fitness(combined), kind="stable")[:POPULATION]
            alive = combined[fittest]
        return [int(pick) for pick in alive[0]]

    def fitness(self, picks: NDArray[Any]) -> NDArray[Any]:
        jobs = np.arange(picks.shape[1])
        total = self.values[jobs, picks].sum(axis=1)
        over = sum((self.use[row][jobs, picks].sum(axis=1) > room).astype(float) for row, room in enumerate(self.room))
        return np.where(np.asarray(over) > 0, -np.inf, total)

    def repair(self, picks: NDArray[Any]) -> NDArray[Any]:
        """Let jobs in a random order keep what they drew while there is room; the others fall back to their minimum."""
        jobs = np.arange(picks.shape[1])
        order = self.rng.permuted(np.broadcast_to(jobs, picks.shape), axis=1)
        fine = np.ones(picks.shape, dtype=bool)
        for row, room in enumerate(self.room):
            minimum = self.use[row][:, 0]
            extra = np.maximum(self.use[row][jobs, picks] - minimum, 0)
            used = np.cumsum(np.take_along_axis(extra, order, axis=1), axis=1)
            late = np.take_along_axis(used > room - minimum.sum(), np.argsort(order, axis=1), axis=1)
            fine &= ~late | (extra == 0)
        return np.where(fine, picks, 0)
