"""The time of one decision, for every policy and three sizes of labs, and its growth.

``python -m tests.bench.decisions [--policy KEY] [--sizes 100x64,1000x1024] [--repeats 5]`` prints medians in
milliseconds, for a full lab with a long queue and for one that empties. Times are of the policy alone; a plan that
breaks a rule is an error.
"""

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import replace

from scheduling import registry
from scheduling.check import violations
from scheduling.types import Account, Curve, Estimate, Job, Limit, Node, Snapshot

PER_NODE = 8
SIZES = ((100, 64), (1_000, 1_024), (10_000, 10_240))
OWNERS = 50
LIMITS_MS = {
    **dict.fromkeys(
        ("fifo", "elastic_fifo", "srjf", "tiresias", "fair_share", "round_robin", "themis", "afs"), (10, 100, 1500)
    ),
    "ffdl": (20, 1000, 20_000),
    "goodput": (100, 1000, 20_000),
}
"""The targets of the specification at each of ``SIZES``."""
OPTIONS: dict[str, list[dict[str, object]]] = {
    "fifo": [{"strict": False}, {"backfill": True}],
    "round_robin": [{"rotate": "time"}],
    "srjf": [{"elastic": True}],
    "tiresias": [{"elastic": True}],
}
"""Options that decide in another way, run in addition to the defaults of each policy."""
NOW = 1_000_000.0


def lab(jobs: int, gpus: int, *, full: bool, seed: int = 1) -> Snapshot:
    """Return a lab with ``jobs`` jobs of all sizes and kinds: full, or with half of the GPUs free and no waiting jobs."""
    rng = random.Random(seed)
    nodes = [f"node{number:05}" for number in range(gpus // PER_NODE)]
    free = dict.fromkeys(nodes, PER_NODE)
    scripts = [_curve(rng) for _ in range(20)]
    everywhere = frozenset(nodes)
    environments = [everywhere, everywhere, everywhere, frozenset(nodes[::2]), frozenset(nodes[1:]) or everywhere]
    drawn = [replace(_job(rng, number, scripts), nodes=rng.choice(environments)) for number in range(jobs)]
    to_use = gpus if full else gpus // 2
    placed: list[Job] = []
    open_nodes = list(nodes)
    for job in drawn:
        where = _place(rng, job, free, open_nodes) if to_use >= job.min_gpus else None
        if where:
            to_use -= sum(where.values())
            job = _running(rng, job, where)
        placed.append(job)
    if not full:
        placed = [job for job in placed if job.running] + [job for job in placed if not job.running][: jobs // 20]
    views = tuple(Node(node, node, PER_NODE, free[node]) for node in nodes)
    owners = {f"user{number}": frozenset[str]() for number in range(OWNERS)}
    for owner in owners:
        owners[owner] = frozenset(job.id for job in placed if job.owner == owner)
    accounts = tuple(Account(owner, 1.0, jobs, (1e5,) * 7) for owner, jobs in owners.items())
    limits = tuple(Limit(owner, max(8, gpus // 10), owners[owner]) for owner in list(owners)[:5])
    return Snapshot(NOW, views, tuple(placed), limits, accounts=accounts)


def _curve(rng: random.Random) -> Curve:
    lost = rng.uniform(0.01, 0.2)
    return Curve(tuple(n / (1 + lost * math.log2(n)) for n in range(1, 17)), source="measured", error=0.1)


def _job(rng: random.Random, number: int, scripts: list[Curve]) -> Job:
    asked = rng.choices([1, 2, 4, 8, 16], [50, 20, 15, 10, 5])[0]
    elastic = asked > 1 and rng.random() < 0.5
    known = rng.random() < 0.7
    return Job(
        id=f"job{number:05}",
        owner=f"user{rng.randrange(OWNERS)}",
        submitted_at=NOW - rng.uniform(0, 1e5),
        min_gpus=max(1, asked // 4) if elastic else asked,
        max_gpus=2 * asked if elastic else asked,
        asked_gpus=asked,
        elastic=elastic,
        spread=elastic or asked > PER_NODE or rng.random() < 0.3,
        preemptible=rng.random() < 0.7,
        script=f"script{rng.randrange(20)}",
        speed=rng.choice(scripts) if known else None,
        work=Estimate(rng.lognormvariate(8, 2), "measured", 0.2) if known else None,
        progress=rng.random() if known else None,
    )


def _running(rng: random.Random, job: Job, where: dict[str, int]) -> Job:
    since = rng.uniform(60, 50_000)
    home = max(where, key=lambda node: where[node])
    base = {home: min(where[home], job.min_gpus)} if job.elastic else where
    return replace(
        job,
        now_on=where,
        base=base,
        started_at=NOW - since,
        first_started_at=NOW - since,
        since=NOW - since,
        run_seconds=since,
        served_gpu_seconds=since * sum(where.values()),
    )


def _place(rng: random.Random, job: Job, free: dict[str, int], open_nodes: list[str]) -> dict[str, int] | None:
    """Place a job on random nodes, so that labs are as fragmented as real ones."""
    want = rng.randint(job.min_gpus, job.max_gpus)
    where: dict[str, int] = {}
    for _ in range(8):
        if not open_nodes:
            break
        index = rng.randrange(len(open_nodes))
        node = open_nodes[index]
        if (not job.spread and free[node] < job.min_gpus) or (job.nodes is not None and node not in job.nodes):
            continue
        take = min(free[node], want - sum(where.values()))
        where[node] = where.get(node, 0) + take
        free[node] -= take
        if not free[node]:
            open_nodes[index] = open_nodes[-1]
            open_nodes.pop()
        if not job.spread or sum(where.values()) >= want:
            break
    if sum(where.values()) >= job.min_gpus:
        return where
    for node, gpus in where.items():
        if not free[node]:
            open_nodes.append(node)
        free[node] += gpus
    return None


def median_ms(key: str, given: dict[str, object], snapshot: Snapshot, repeats: int) -> float:
    policy = registry.build(key, given)
    if wrong := violations(snapshot, policy.plan(snapshot)):
        raise SystemExit(f"{key} breaks rules: {wrong[:3]}")
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        policy.plan(snapshot)
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def exponent(points: Iterable[tuple[int, float]]) -> float:
    """Return the exponent of the growth with the number of jobs, from the first to the last size: 1 is linear."""
    (small, fast), *_, (large, slow) = points
    return math.log(slow / fast) / math.log(large / small)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", action="append", choices=list(registry.POLICIES))
    parser.add_argument("--sizes", default=",".join(f"{jobs}x{gpus}" for jobs, gpus in SIZES))
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    sizes = [(int(jobs), int(gpus)) for jobs, gpus in (size.split("x") for size in args.sizes.split(","))]
    labs = {(size, full): lab(*size, full=full) for size in sizes for full in (True, False)}
    heads = "".join(f"{f'{jobs} x {gpus}':>22}" for jobs, gpus in sizes)
    print(f"One decision, median ms, full / emptying lab{'':8}{heads}   growth")
    late = 0
    for key in args.policy or registry.POLICIES:
        for given in [{}, *OPTIONS.get(key, [])]:
            name = key + "".join(f" {option}={value}" for option, value in given.items())
            cells, points = [], []
            for size in sizes:
                full, emptying = (median_ms(key, given, labs[size, kind], args.repeats) for kind in (True, False))
                allowed = dict(zip(SIZES, LIMITS_MS.get(key, ()), strict=False)).get(size, math.inf)
                mark = "!" if max(full, emptying) > allowed else " "
                late += mark == "!"
                cells.append(f"{f'{full:.1f} / {emptying:.1f}{mark}':>22}")
                points.append((size[0], full))
            growth = f"jobs^{exponent(points):.2f}" if len(points) > 1 else ""
            print(f"{name:<51}{''.join(cells)}   {growth}", flush=True)
    print(f"{late} beyond what is allowed (marked !)." if late else "All within what is allowed.")
    return int(late > 0)


if __name__ == "__main__":
    sys.exit(main())
