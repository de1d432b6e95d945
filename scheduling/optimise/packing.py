"""The cheapest nodes for the tasks of one job: a mixed packing and covering program.

``free[h][r]`` is what node ``h`` has left of resource ``r``, ``prices[h][r]`` is the price of a unit of it; a task of kind
``k`` needs ``needs[k][r]``, and ``counts[k]`` such tasks are wanted. All functions return tasks per node ``[h][k]``, or
None when they do not fit. PD-ORS (arXiv 2108.02917) relaxes the program and rounds at random (confirmed in its abstract).
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

ROUNDINGS = 20
"""The number of roundings; the cheapest after its repair is taken."""
EPSILON = 1e-9


def solve_exactly(prices: Floats, free: Floats, needs: Floats, counts: Counts) -> Counts | None:
    """Return the exact solution: tasks of one kind fill the cheapest nodes first; for several kinds HiGHS solves it."""
    wanted = np.flatnonzero(counts)
    if len(wanted) == 1:
        kind = int(wanted[0])
        tasks = np.zeros((len(free), len(counts)), dtype=np.int64)
        filled = fill_cheapest(prices @ needs[kind], capacity(free, needs[kind]), int(counts[kind]))
        if filled is None:
            return None
        tasks[:, kind] = filled
        return tasks
    cost, packing, limits, covering = _program(prices, free, needs)
    found = milp(
        cost,
        constraints=[LinearConstraint(packing, ub=limits), LinearConstraint(covering, lb=counts)],
        bounds=Bounds(0, np.inf),
        integrality=np.ones(len(cost)),
    )
    return np.rint(found.x).astype(np.int64).reshape(len(free), len(counts)) if found.success else None


def solve_by_rounding(prices: Floats, free: Floats, needs: Floats, counts: Counts, seed: int) -> Counts | None:
    """Return the solution of the paper: each variable of the relaxed optimum is rounded up with the probability of its
    fraction.

    On small nodes the optimum fills the cheapest completely, so that hardly any draw fits, and each is repaired: tasks
    leave nodes that are too full, missing ones are added where they are cheapest, surplus ones go where they are dearest.
    """
    cost, packing, limits, covering = _program(prices, free, needs)
    found = linprog(cost, A_ub=np.vstack([packing, -covering]), b_ub=np.concatenate([limits, -counts]))
    if not found.success:
        return None
    rng = np.random.default_rng(seed)
    each = cost.reshape(len(free), len(counts))
    best: Counts | None = None
    for _ in range(ROUNDINGS):
        draw = np.floor(found.x + rng.random(len(cost)) + EPSILON).astype(np.int64).reshape(each.shape)
        tasks = _repair(draw, each, free, needs, counts)
        if tasks is not None and (best is None or (tasks * each).sum() < (best * each).sum() - EPSILON):
            best = tasks
    return best if best is not None else solve_exactly(prices, free, needs, counts)


def fill_cheapest(prices: Floats, room: Counts, count: int) -> Counts | None:
    """Place equal tasks of size one: sort by price and fill. Exact."""
    order = np.argsort(prices, kind="stable")
    before = np.cumsum(room[order]) - room[order]
    tasks = np.zeros(len(room), dtype=np.int64)
    tasks[order] = np.clip(count - before, 0, room[order])
    return tasks if tasks.sum() == count else None


def capacity(free: Floats, need: Floats) -> Counts:
    """Return how many tasks of one kind each node could have."""
    used = need > 0
    counts: Counts = np.floor((free[:, used] / need[used]).min(axis=1) + EPSILON).clip(0).astype(np.int64)
    return counts


def _program(prices: Floats, free: Floats, needs: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return costs, packing rows, their limits, and covering rows; variables are ordered by node, then by kind of task."""
    nodes, kinds = len(free), len(needs)
    cost: Floats = (prices @ needs.T).ravel()
    packing: Floats = np.kron(np.eye(nodes), needs.T).astype(np.float64)
    covering: Floats = np.tile(np.eye(kinds), nodes).astype(np.float64)
    return cost, packing, free.ravel(), covering


def _repair(tasks: Counts, each: Floats, free: Floats, needs: Floats, counts: Counts) -> Counts | None:
    left = free - tasks @ needs
    for node, kind in sorted(np.ndindex(*tasks.shape), key=lambda at: (-each[at], at)):
        while tasks[node, kind] and (left[node] < -EPSILON).any() and (needs[kind][left[node] < -EPSILON] > 0).any():
            tasks[node, kind] -= 1
            left[node] += needs[kind]
    for kind in np.argsort(-needs.sum(axis=1), kind="stable"):
        for node in np.argsort(each[:, kind], kind="stable"):
            while tasks[:, kind].sum() < counts[kind] and (left[node] - needs[kind] >= -EPSILON).all():
                tasks[node, kind] += 1
                left[node] -= needs[kind]
        for node in np.argsort(-each[:, kind], kind="stable"):
            surplus = min(tasks[node, kind], tasks[:, kind].sum() - counts[kind])
            if surplus > 0:
                tasks[node, kind] -= surplus
                left[node] += surplus * needs[kind]
    return tasks if (tasks.sum(axis=0) >= counts).all() else None
