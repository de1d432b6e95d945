"""Priority is paid for: laws of every policy about how often the GPU time of a job counts in shares."""

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling import registry
from scheduling.decide import decide
from scheduling.policies.fair_share import FairShare
from scheduling.share_factors import share_factor
from scheduling.simulate import Options, Submission, accounts_of, lasts, simulate
from scheduling.types import Account, Node, Plan, Policy, Snapshot
from tests.examples import mostly_thorough
from tests.scheduling.strategies import EXAMPLES, quick_policy, snapshots
from tests.scheduling.worlds import DecidedPolicy, World, draw, reaches_stable_plan, waiting

EVERY = pytest.mark.parametrize("key", registry.POLICIES)
WITH_SHARES = ("fair_share",)
"""The policies that divide by the usage of accounts; the documentation names them (docs/policies/rules-around.md)."""
HOUR = 3600.0


def test_up_to_normal_a_second_counts_once_and_above_once_more_for_each_step() -> None:
    assert [share_factor(priority) for priority in (-10, -1, 0, 1, 2, 10)] == [1, 1, 1, 2, 3, 11]
    assert waiting("x", priority=2).share_factor == 3


def with_priorities(snapshot: Snapshot, owner: str, priority: int) -> Snapshot:
    jobs = (replace(job, priority=priority) if job.owner == owner else job for job in snapshot.jobs)
    return replace(snapshot, jobs=tuple(jobs))


# --- which policies have shares ----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [key for key in registry.POLICIES if key not in WITH_SHARES])
@settings(max_examples=max(10, EXAMPLES // 3), deadline=None)
@given(snapshot=snapshots())
def test_the_others_decide_whatever_accounts_have_used(key: str, snapshot: Snapshot) -> None:
    policy = quick_policy(key)
    others = replace(snapshot, accounts=tuple(replace(each, used=(), weight=1.0) for each in snapshot.accounts))
    assert decide(policy, others).target == decide(policy, snapshot).target


@pytest.mark.parametrize("key", WITH_SHARES)
def test_those_with_shares_prefer_who_used_less(key: str) -> None:
    lab = draw({"a": 1}, waiting("x", owner="alice"), waiting("y", owner="bob"))
    heavy, light = (Account(name, 1.0, frozenset({job}), (1e6,)) for name, job in (("alice", "x"), ("bob", "y")))
    plan = decide(quick_policy(key), replace(lab, accounts=(heavy, replace(light, used=()))))
    assert set(plan.target) == {"y"}


# --- the usage that every policy gets ----------------------------------------------------------------------------


def submissions(owner: str, count: int, priority: int, *, every: float, seconds: float = 600.0) -> list[Submission]:
    jobs = (waiting(f"{owner}-{n}", owner=owner, priority=priority, submitted_at=1 + n * every) for n in range(count))
    return [Submission(job, lasts(seconds, gpus=1)) for job in jobs]


def used_gpu_seconds(
    policy: Policy, jobs: list[Submission], gpus: int, until: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return by owner the GPU-seconds that a simulation really gave, and those in the last snapshot of the policy."""
    last: list[Snapshot] = []
    result = simulate(
        policy,
        [Node("a", "a", gpus, gpus)],
        jobs,
        accounts=accounts_of(jobs),
        options=Options(until=until, release_seconds=0.0),
        on_turn=lambda seen, plan: last.append(seen),
    )
    given: dict[str, float] = defaultdict(float)
    for job in result.jobs:
        given[job.owner] += job.gpu_seconds
    counted = {account.name: sum(account.used) for account in last[-1].accounts}
    return given, counted


@EVERY
@pytest.mark.parametrize("priority", [-3, 0, 1, 4])
def test_every_policy_gets_the_time_above_normal_counted_by_the_factor(key: str, priority: int) -> None:
    jobs = submissions("alice", 12, priority, every=600.0) + submissions("bob", 12, 0, every=600.0)
    for owner in (
        "alice",
        "bob",
    ):  # jobs at the end, so that the last snapshot comes after the usage was brought up to date
        jobs.append(Submission(waiting(f"{owner}-late", owner=owner, submitted_at=5 * HOUR), lasts(60, gpus=1)))
    given, counted = used_gpu_seconds(quick_policy(key), jobs, 4, 6 * HOUR)
    for owner, factor in (("alice", share_factor(priority)), ("bob", 1)):
        before_late = given[owner] - 60
        assert counted[owner] == pytest.approx(factor * before_late, rel=0.02, abs=130)


# --- what it costs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", WITH_SHARES)
@pytest.mark.parametrize("priority", mostly_thorough([0, 1, 3], 3))
def test_over_days_who_runs_all_at_a_high_priority_gets_its_part_of_equal_shares(key: str, priority: int) -> None:
    """Two equal users always have jobs for all GPUs: the times are as one to the factor."""
    jobs = submissions("alice", 700, priority, every=60.0) + submissions("bob", 700, 0, every=60.0)
    given, _ = used_gpu_seconds(quick_policy(key), jobs, 6, 24 * HOUR)
    assert given["alice"] + given["bob"] > 0.95 * 6 * 24 * HOUR - 6 * HOUR
    assert given["alice"] * share_factor(priority) == pytest.approx(given["bob"], rel=0.2)


@settings(max_examples=max(10, EXAMPLES // 3), deadline=None)
@given(
    gpus=st.integers(1, 12),
    counts=st.lists(st.integers(0, 12), min_size=3, max_size=3),
    used=st.lists(st.floats(0, 1e6), min_size=3, max_size=3),
    priority=st.integers(1, 10),
)
def test_no_one_gets_more_by_raising_the_priority_of_all_their_jobs(
    gpus: int, counts: list[int], used: list[float], priority: int
) -> None:
    """Jobs of one GPU: with larger ones, what others cannot use may fall to anyone, whatever the shares."""
    owners = ("alice", "bob", "charlie")
    jobs = [
        waiting(f"{owner}-{n}", owner=owner) for owner, count in zip(owners, counts, strict=True) for n in range(count)
    ]
    accounts = tuple(
        Account(owner, 1.0, frozenset(job.id for job in jobs if job.owner == owner), (spent,))
        for owner, spent in zip(owners, used, strict=True)
    )
    normal = replace(draw({"a": gpus}, *jobs), accounts=accounts)

    def gpus_of_alice(snapshot: Snapshot) -> int:
        plan = decide(FairShare(), snapshot)
        return sum(sum(plan.target.get(job.id, {}).values()) for job in snapshot.jobs if job.owner == "alice")

    assert gpus_of_alice(with_priorities(normal, "alice", priority)) <= gpus_of_alice(normal)


@pytest.mark.parametrize("priority", [1, 5, 10])
def test_within_an_account_the_price_changes_no_order(priority: int) -> None:
    """A job at a high priority costs more than is left of a small share, and still goes before its owner's other jobs."""
    lab = draw({"a": 1}, waiting("old"), waiting("urgent", priority=priority))
    assert set(decide(FairShare(), lab).target) == {"urgent"}


# --- what stays as it was ----------------------------------------------------------------------------------------


@EVERY
@settings(max_examples=max(10, EXAMPLES // 3), deadline=None)
@given(snapshot=snapshots(), low=st.integers(-10, 0))
def test_at_normal_and_below_nothing_is_counted_twice(key: str, snapshot: Snapshot, low: int) -> None:
    """With one factor for all jobs, every decision is the one of a scheduler that knows no factors."""
    snapshot = replace(snapshot, jobs=tuple(replace(job, priority=min(job.priority, low)) for job in snapshot.jobs))
    assert {job.share_factor for job in snapshot.jobs} <= {1}
    with pytest.MonkeyPatch.context() as patch:
        plan: Plan = decide(quick_policy(key), snapshot)
        patch.setattr("scheduling.types.share_factor", lambda priority: 1)
        assert decide(quick_policy(key), snapshot).target == plan.target


@EVERY
@settings(max_examples=max(10, EXAMPLES // 3), deadline=None)
@given(snapshot=snapshots(calm=True), priority=st.integers(1, 10))
def test_an_unchanged_world_with_high_priorities_comes_to_rest(key: str, snapshot: Snapshot, priority: int) -> None:
    world = World.of(with_priorities(snapshot, "alice", priority))
    assert reaches_stable_plan(world, DecidedPolicy(quick_policy(key)), cycles=30)
