"""Random snapshots for the laws: valid ones, such as the portal could have.

Hypothesis chooses sizes and a seed, and shrinks those; a simple generator fills in the rest, which is fifty times faster
than drawing each number separately.
"""

import os
import random
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from scheduling import registry
from scheduling.gpu_requests import accepts
from scheduling.messages import Text
from scheduling.toolkit import resources
from scheduling.types import ANY_GPU, Account, Curve, Estimate, GpuRequest, Job, Limit, Node, Policy, Snapshot
from tests.examples import examples
from tests.scheduling.worlds import NOW

NODE_NAMES = ("a", "b", "c", "d")
OWNERS = ("alice", "bob", "charlie")
EXAMPLES = int(os.environ.get("LAW_EXAMPLES") or examples(300, 30))
"""Random clusters per law."""
QUICK: dict[str, dict[str, Any]] = {"ones": {"generations": 2}}
"""A longer search finds no other kinds of plans."""


def quick_policy(key: str) -> Policy:
    """Return the policy with its defaults, but with no longer search than a law needs."""
    return registry.build(key, QUICK.get(key, {}))


def snapshots(*, max_jobs: int = 10, calm: bool = False) -> st.SearchStrategy[Snapshot]:
    """Free, leaving and held GPUs add up on each node. ``calm`` worlds have only open nodes and startable jobs."""
    return st.builds(
        lambda nodes, jobs, seed: random_snapshot(random.Random(seed), nodes, jobs, calm=calm),
        nodes=st.integers(1, len(NODE_NAMES)),
        jobs=st.integers(0, max_jobs),
        seed=st.integers(0, 2**32),
    )


def random_snapshot(rng: random.Random, node_count: int, job_count: int, *, calm: bool = False) -> Snapshot:
    names = NODE_NAMES[:node_count]
    totals = {name: rng.randint(0, 6) for name in names}
    left = dict(totals)
    jobs: list[Job] = []
    for number in range(job_count):
        job = _random_job(rng, str(number), names, calm)
        if rng.random() < 0.5:
            job = _place_job(rng, job, left)
        elif not calm and rng.random() < 0.1:
            job = replace(job, stopping=True)
        jobs.append(job)
    nodes = []
    for name in names:
        leaving = rng.randint(0, left[name]) if rng.random() < 0.5 else 0
        is_open = calm or rng.random() < 0.8
        kind = rng.choice(["", "A100"])
        nodes.append(Node(name, f"node-{name}", totals[name], left[name] - leaving, leaving, is_open, kind))
    limits = [
        Limit(owner, rng.randint(0, 8), _jobs_of(owner, jobs), rng.randint(0, 1))
        for owner in OWNERS[:2]
        if rng.random() < 0.5
    ]
    accounts = tuple(_random_account(rng, owner, jobs) for owner in OWNERS)
    return Snapshot(NOW, tuple(nodes), tuple(jobs), tuple(limits), accounts=accounts)


def random_curve(rng: random.Random, batches: bool = False) -> Curve:
    """Not concave and not even growing: measured curves are like that."""
    speeds = [1.0]
    for _ in range(rng.randint(0, 8)):
        speeds.append(max(0.1, speeds[-1] + rng.choice([1.0, 0.9, 0.5, 0.1, 0.0, -0.3])))
    sizes = tuple(64 * (n + 1) for n in range(len(speeds))) if batches else ()
    return Curve(tuple(speeds), sizes, apart=rng.choice([1.0, 0.5]), source="measured", error=0.1)


def _jobs_of(owner: str, jobs: list[Job]) -> frozenset[str]:
    return frozenset(job.id for job in jobs if job.owner == owner)


def _random_account(rng: random.Random, owner: str, jobs: list[Job]) -> Account:
    used = tuple(rng.uniform(0, 1e6) for _ in range(rng.randint(0, 3)))
    return Account(owner, rng.choice([1.0, 1.0, 2.0, 0.5]), _jobs_of(owner, jobs), used)


def _random_job(rng: random.Random, id: str, names: tuple[str, ...], calm: bool) -> Job:
    minimum = rng.randint(1, 4)
    maximum = minimum + rng.randint(0, 4)
    spread = rng.random() < 0.5
    ran = rng.choice([0.0, 0.0, 600.0, 1e5])
    some = rng.random() < 0.5 and not calm
    return Job(
        id=id,
        owner=rng.choice(OWNERS),
        submitted_at=float(rng.randint(0, 5)),
        min_gpus=minimum,
        max_gpus=maximum,
        asked_gpus=rng.randint(minimum, maximum),
        priority=rng.choice([0, 0, 0, 1]),
        elastic=spread and rng.random() < 0.5,
        spread=spread,
        preemptible=rng.random() < 0.5,
        nodes=frozenset(name for name in names if rng.random() < 0.5) if some else None,
        blocked=Text("Its environment is not ready.") if not calm and rng.random() < 0.1 else None,
        served_gpu_seconds=ran * minimum,
        run_seconds=ran,
        first_started_at=NOW - 2 * ran if ran else None,
        since=NOW - ran / 2 if ran else None,
        restarts=1 if ran else 0,
        tier=rng.choice(["premium", "standard", "standard", "basic"]),
        opportunistic=rng.random() < 0.2,
        script=rng.choice(["", "digits", "bert"]),
        batch=rng.choice([0, 128]),
        speed=rng.choice([None, random_curve(rng)]),
        free_speed=rng.choice([None, random_curve(rng, batches=True)]),
        work=rng.choice([None, Estimate(rng.choice([0.0, 30.0, rng.uniform(0, 1e6)]), "history", 0.5)]),
        progress=rng.choice([None, rng.random()]),
        deadline=rng.choice([None, None, NOW - 10, NOW + 3600]),
        longest_seconds=rng.choice([None, 7200.0]),
    )


def _place_job(rng: random.Random, job: Job, left: dict[str, int]) -> Job:
    """Lets the job run on GPUs that are left, if it fits."""
    count = rng.randint(job.min_gpus, job.max_gpus)
    now_on: dict[str, int] = {}
    for name in rng.sample(sorted(left), len(left)):
        if job.spread or left[name] >= count:
            take = min(left[name], count - sum(now_on.values()))
            if take:
                now_on[name] = take
    if sum(now_on.values()) != count:
        return job
    for name, gpus in now_on.items():
        left[name] -= gpus
    home = max(now_on, key=lambda name: now_on[name])
    base = {home: min(now_on[home], job.min_gpus)} if job.elastic else now_on
    if job.elastic and rng.random() < 0.2:
        for name in now_on:  # what it had in addition to its base was lost with a node
            left[name] += now_on[name] - base.get(name, 0)
        now_on = dict(base)
    return replace(job, now_on=now_on, base=base, stopping=False, started_at=NOW - 60)


SHARE = resources.Amount(4000, 16_384)
"""Four processors and 16 GiB for each GPU."""


def with_shares(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with known processors and memory, of which each job takes the shares of its GPUs."""
    nodes = (
        replace(node, millicpus_per_gpu=SHARE.millicpus, memory_mib_per_gpu=SHARE.memory_mib) for node in snapshot.nodes
    )
    return replace(snapshot, nodes=tuple(nodes))


def with_demands(snapshot: Snapshot, seed: int) -> Snapshot:
    """Return the snapshot with demands for some jobs: of those that run, as far as their nodes have enough."""
    rng = random.Random(seed)
    snapshot = with_shares(snapshot)
    nodes = {node.id: node for node in snapshot.nodes}
    jobs: list[Job] = []
    for job in snapshot.jobs:
        if rng.random() < 0.5:
            asks = replace(
                job,
                millicpus_per_gpu=rng.choice([None, 1000, 4000, 5000, 6000, 12_000]),
                memory_mib_per_gpu=rng.choice([None, 1024, 10_000, 16_384, 17_000, 20_000, 40_000]),
            )
            held = {
                node: resources.NOTHING.plus(resources.beyond_share(asks, nodes[node]), -gpus)
                for node, gpus in job.now_on.items()
            }
            after = {node: resources.with_more(nodes[node], more) for node, more in held.items()}
            if all(_is_possible(node, job) for node in after.values()):
                nodes.update(after)
                job = asks
        jobs.append(job)
    for id, node in nodes.items():
        if node.leaving and rng.random() < 0.5:
            more = resources.Amount(rng.randint(-4000, 0) * node.leaving, rng.randint(-16_000, 0) * node.leaving)
            nodes[id] = resources.with_more(node, resources.NOTHING.plus(more, -1), more)
    return replace(snapshot, nodes=tuple(nodes.values()), jobs=tuple(jobs))


def _is_possible(node: Node, job: Job) -> bool:
    """Whether what is left is not negative, without the GPUs of other jobs."""
    extra = resources.extra_of(node)
    return all(node.free * share + more >= 0 for share, more in zip(SHARE, extra, strict=True))


KINDS = {"T4": 15_360, "A100": 40_960, "A100 80GB": 81_920}
"""The memory of each GPU, in MiB, by kind."""


def with_gpu_requests(snapshot: Snapshot, seed: int) -> Snapshot:
    """Return the snapshot with several kinds of GPUs, machines that have two of them, and requests of some jobs.

    What runs is on GPUs that it accepts.
    """
    rng = random.Random(seed)
    joined = rng.random() < 0.3 and len(snapshot.nodes) > 1
    nodes: dict[str, Node] = {}
    for number, node in enumerate(snapshot.nodes):
        of_machine = {each.kind for each in nodes.values()} if joined and number < 2 else set()
        kind = rng.choice([kind for kind in KINDS if kind not in of_machine])
        part_of = "m" if joined and number < 2 else ""
        is_parts = rng.random() < 0.15 and not any(job.max_gpus > 1 and node.id in job.now_on for job in snapshot.jobs)
        nodes[node.id] = replace(node, kind=kind, gpu_memory_mib=KINDS[kind], part_of=part_of, parts_of_gpus=is_parts)
    jobs = []
    for job in snapshot.jobs:
        request = rng.choice([ANY_GPU, _random_request(rng)])
        there = [nodes[node] for node in job.now_on]
        choosy = replace(job, gpu_request=request)
        if all(accepts(choosy, node) for node in there) and (
            not request.same_kind or len({node.kind for node in there}) < 2
        ):
            job = choosy
        jobs.append(job)
    return replace(snapshot, nodes=tuple(nodes.values()), jobs=tuple(jobs))


def _random_request(rng: random.Random) -> GpuRequest:
    kinds = tuple(sorted(kind for kind in KINDS if rng.random() < 0.5)) if rng.random() < 0.5 else ()
    return GpuRequest(rng.choice([0, 15_360, 16_384, 40_960, 81_920, 90_000]), kinds, rng.random() < 0.5)
