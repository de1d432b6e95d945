"""Random worlds for the laws: sound ones, as the portal could draw them."""

from dataclasses import replace

from hypothesis import strategies as st

from scheduling.types import Account, Curve, Estimate, Job, Limit, Node, Snapshot
from tests.scheduling.worlds import NOW

NODE_NAMES = ("a", "b", "c", "d")


@st.composite
def snapshots(draw: st.DrawFn, *, most_jobs: int = 10, calm: bool = False) -> Snapshot:
    """Free, leaving and held GPUs add up on each node. ``calm`` worlds have only open nodes and startable jobs."""
    names = NODE_NAMES[: draw(st.integers(1, len(NODE_NAMES)))]
    totals = {name: draw(st.integers(0, 6)) for name in names}
    left = dict(totals)
    jobs: list[Job] = []
    for number in range(draw(st.integers(0, most_jobs))):
        job = _job(draw, str(number), names, calm)
        if draw(st.booleans()):
            job = _put(draw, job, left)
        elif not calm and draw(st.integers(0, 9)) == 0:
            job = replace(job, stopping=True)
        jobs.append(job)
    nodes = []
    for name in names:
        leaving = draw(st.integers(0, left[name])) if draw(st.booleans()) else 0
        is_open = calm or draw(st.integers(0, 5)) > 0
        nodes.append(Node(name, f"node-{name}", totals[name], left[name] - leaving, leaving, is_open))
    limits = []
    for owner in ("alice", "bob"):
        if draw(st.booleans()):
            mine = frozenset(job.id for job in jobs if job.owner == owner)
            limits.append(Limit(owner, draw(st.integers(0, 8)), mine, draw(st.integers(0, 1))))
    accounts = tuple(_account(draw, owner, jobs) for owner in ("alice", "bob", "charlie"))
    return Snapshot(NOW, tuple(nodes), tuple(jobs), tuple(limits), accounts=accounts)


def _account(draw: st.DrawFn, owner: str, jobs: list[Job]) -> Account:
    mine = frozenset(job.id for job in jobs if job.owner == owner)
    used = tuple(draw(st.lists(st.floats(0, 1e6), max_size=3)))
    return Account(owner, draw(st.sampled_from([1.0, 1.0, 2.0, 0.5])), mine, used)


def _job(draw: st.DrawFn, id: str, names: tuple[str, ...], calm: bool) -> Job:
    least = draw(st.integers(1, 4))
    spread = draw(st.booleans())
    elastic = spread and draw(st.booleans())
    some = draw(st.booleans()) and not calm
    most = least + draw(st.integers(0, 4))
    ran = draw(st.sampled_from([0.0, 0.0, 600.0, 1e5]))
    return Job(
        id=id,
        owner=draw(st.sampled_from(["alice", "bob", "charlie"])),
        submitted_at=float(draw(st.integers(0, 5))),
        min_gpus=least,
        max_gpus=most,
        asked_gpus=draw(st.integers(least, most)),
        priority=draw(st.sampled_from([0, 0, 0, 1])),
        elastic=elastic,
        spread=spread,
        nodes=draw(st.frozensets(st.sampled_from(names))) if some else None,
        preemptible=draw(st.booleans()),
        served_gpu_seconds=ran * least,
        run_seconds=ran,
        first_started_at=NOW - 2 * ran if ran else None,
        since=NOW - ran / 2 if ran else None,
        restarts=1 if ran else 0,
        tier=draw(st.sampled_from(["premium", "standard", "standard", "basic"])),
        opportunistic=draw(st.integers(0, 5)) == 0,
        script=draw(st.sampled_from(["", "digits", "bert"])),
        batch=draw(st.sampled_from([0, 128])),
        speed=draw(st.none() | curves()),
        free_speed=draw(st.none() | curves(batches=True)),
        work=draw(st.none() | st.builds(Estimate, st.floats(0.0, 1e6), st.just("history"), st.floats(0.0, 2.0))),
        deadline=draw(st.sampled_from([None, None, NOW - 10, NOW + 3600])),
        blocked="Its environment is not ready." if not calm and draw(st.integers(0, 7)) == 0 else "",
    )


def _put(draw: st.DrawFn, job: Job, left: dict[str, int]) -> Job:
    """Lets the job run on GPUs that are left, if it fits."""
    count = draw(st.integers(job.min_gpus, job.max_gpus))
    now_on: dict[str, int] = {}
    for name in draw(st.permutations(sorted(left))):
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
    if job.elastic and draw(st.integers(0, 4)) == 0:
        for name in now_on:  # what it had besides its base was lost with a node
            left[name] += now_on[name] - base.get(name, 0)
        now_on = dict(base)
    return replace(job, now_on=now_on, base=base, stopping=False, started_at=NOW - 60)


@st.composite
def curves(draw: st.DrawFn, batches: bool = False) -> Curve:
    """Not concave and not even growing: measured curves are like that."""
    gains = draw(st.lists(st.sampled_from([1.0, 0.9, 0.5, 0.1, 0.0, -0.3]), min_size=0, max_size=8))
    speeds = [1.0]
    for gain in gains:
        speeds.append(max(0.1, speeds[-1] + gain))
    sizes = tuple(64 * (n + 1) for n in range(len(speeds))) if batches else ()
    return Curve(tuple(speeds), sizes, apart=draw(st.sampled_from([1.0, 0.5])), source="measured", error=0.1)
