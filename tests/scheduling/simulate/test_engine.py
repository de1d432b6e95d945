"""A lab in a virtual clock."""

from typing import Any, ClassVar

import pytest

from scheduling import registry
from scheduling.simulate import (
    Interruption,
    InvalidPlanError,
    Loss,
    Options,
    Plain,
    Result,
    Submission,
    accounts_of,
    lasts,
    linear,
    simulate,
)
from scheduling.types import Curve, Job, Limit, Node, Plan, Snapshot

QUICK = Options(release_seconds=10)


def nodes(**gpus: int) -> list[Node]:
    return [Node(name, name, count, count) for name, count in gpus.items()]


def job(id: str, at: float, minimum: int = 1, maximum: int | None = None, **facts: Any) -> Job:
    return Job(id, facts.pop("owner", "alice"), at, minimum, maximum or minimum, **facts)


def rigid(id: str, at: float, gpus: int, seconds: float, **facts: Any) -> Submission:
    return Submission(job(id, at, gpus, **facts), lasts(seconds, gpus))


def run(
    key: str, cluster: list[Node], *submissions: Submission, params: dict[str, Any] | None = None, **more: Any
) -> Result:
    more.setdefault("options", QUICK)
    return simulate(registry.build(key, params or {}), cluster, submissions, **more)


def ends(result: Result) -> dict[str, float | None]:
    return {row.id: row.ended_at for row in result.jobs}


def test_jobs_follow_one_another_in_order() -> None:
    result = run("fifo", nodes(a=2), rigid("x", 0, 2, 100), rigid("y", 10, 2, 50), rigid("z", 20, 1, 5))
    assert ends(result) == {"x": 100, "y": 150, "z": 155}
    assert [row.waiting for row in result.jobs] == [0, 90, 130]
    summary = result.summary()
    assert summary.makespan == 155
    assert summary.gpu_hours == pytest.approx((200 + 100 + 5) / 3600)
    assert summary.utilisation == pytest.approx(305 / 310)


def test_an_elastic_job_gives_way_and_grows_again_and_each_change_costs_it() -> None:
    long = Submission(job("x", 0, 1, 2, elastic=True, resize_seconds=5), Plain(work=200, curve=Curve((1.0, 2.0))))
    result = run("elastic_fifo", nodes(a=2), long, rigid("y", 20, 1, 30), params={"grow_after_seconds": 0})
    # x: 20 s on two; then y waits 10 s for what x gives back; x stands still for 5 s at each change.
    y = next(row for row in result.jobs if row.id == "y")
    assert (y.first_started_at, y.ended_at) == (30, 60)
    x = next(row for row in result.jobs if row.id == "x")
    # 40 s of work till 20, 1 a second from 25 to 60, 2 a second from 65
    assert x.ended_at == pytest.approx(65 + (200 - 40 - 35) / 2)
    assert x.resizes == 2
    assert x.lost_gpu_seconds == pytest.approx(10 + 5 + 10)  # leaving, then still on one, then on two


def test_facts_of_a_job_are_kept_as_the_live_snapshot_has_them() -> None:
    seen: list[tuple[float, Job]] = []

    def note(snapshot: Snapshot, plan: Plan) -> None:
        seen.extend((snapshot.now, job) for job in snapshot.jobs if job.id == "x")

    long = Submission(job("x", 0, 1, 2, elastic=True, preemptible=True), Plain(100, Curve((1.0, 2.0))))
    run("elastic_fifo", nodes(a=2), long, rigid("y", 20, 1, 10), on_turn=note)
    facts = dict(seen)
    assert (facts[0].served_gpu_seconds, facts[0].since, facts[0].waiting) == (0, None, True)
    now = facts[20]
    assert (now.served_gpu_seconds, now.run_seconds, now.first_started_at, now.since) == (40, 20, 0, 0)
    assert (now.now_on, now.base, now.started_at) == ({"a": 2}, {"a": 1}, 0)
    assert now.work is not None and now.work.value == 60
    assert now.progress == 0.4


def test_gpus_asked_back_are_leaving_and_no_job_has_them_meanwhile() -> None:
    views: dict[float, tuple[int, int]] = {}

    def note(snapshot: Snapshot, plan: Plan) -> None:
        views[snapshot.now] = (snapshot.nodes[0].free, snapshot.nodes[0].leaving)

    long = Submission(job("x", 0, 1, 2, elastic=True), Plain(100, Curve((1.0, 2.0))))
    run("elastic_fifo", nodes(a=2), long, rigid("y", 20, 1, 10), rigid("z", 23, 1, 10), on_turn=note)
    assert views[20] == (0, 0)
    assert views[23] == (0, 1)
    assert views[30] == (1, 0)


class TakesAll:
    """Breaks the rule that GPUs in use are not given."""

    title: ClassVar[str] = ""
    explanation: ClassVar[str] = ""

    def plan(self, snapshot: Snapshot) -> Plan:
        return Plan({job.id: {"a": 2} for job in snapshot.jobs})


def test_a_plan_that_breaks_a_rule_ends_it_all() -> None:
    with pytest.raises(InvalidPlanError, match="MoreGpusThanFree"):
        simulate(TakesAll(), nodes(a=2), [rigid("x", 0, 2, 10), rigid("y", 0, 2, 10)])


def test_a_lost_node_takes_its_jobs_back_to_their_last_checkpoint() -> None:
    saver = Submission(job("x", 0, 1, restart_seconds=7), lasts(100, 1), checkpoint_seconds=20)
    options = Options(losses=[Loss("a", at=50, back_at=200)])
    result = run("fifo", nodes(a=1), saver, options=options)
    (x,) = result.jobs
    assert x.ended_at == 200 + 7 + 60  # 40 s were saved
    assert x.restarts == 1
    assert x.lost_gpu_seconds == pytest.approx(10 + 7)


def test_without_checkpoints_a_lost_node_means_from_the_beginning() -> None:
    result = run("fifo", nodes(a=1), rigid("x", 0, 1, 100), options=Options(losses=[Loss("a", 50, 60)]))
    assert ends(result) == {"x": 60 + 30 + 100}


def test_an_elastic_job_lives_on_without_the_node_it_lost() -> None:
    wide = Submission(job("x", 0, 2, 4, elastic=True, resize_seconds=0), Plain(400, linear(4)))
    options = Options(losses=[Loss("b", at=50)])
    result = run("elastic_fifo", nodes(a=2, b=2), wide, options=options)
    assert ends(result) == {"x": 50 + 200 / 2}


def test_it_starts_from_a_world_in_which_jobs_run_already() -> None:
    old = job(
        "x", -500, 1, now_on={"a": 1}, base={"a": 1}, started_at=-100, first_started_at=-100, served_gpu_seconds=100
    )
    result = run("fifo", nodes(a=1), Submission(old, lasts(40, 1)), rigid("y", -400, 1, 10), now=0)
    assert ends(result) == {"x": 40, "y": 50}


def test_an_attempt_that_takes_too_long_is_stopped() -> None:
    result = run("fifo", nodes(a=1), rigid("x", 0, 1, 100, longest_seconds=30), rigid("y", 0, 1, 10))
    assert {row.id: row.outcome for row in result.jobs} == {"x": "timed out", "y": "ended"}
    assert ends(result) == {"x": 30, "y": 40}


def test_a_job_that_can_never_run_does_not_keep_the_clock_going() -> None:
    result = run("fifo", nodes(a=1), rigid("x", 0, 2, 10), rigid("y", 0, 1, 10))
    assert {row.id: row.outcome for row in result.jobs} == {"x": "unfinished", "y": "ended"}


def test_a_limit_counts_what_is_leaving() -> None:
    jobs = [rigid("x", 0, 1, 100), rigid("y", 0, 1, 100)]
    result = run("fifo", nodes(a=2), *jobs, limits=[Limit("alice", 1, frozenset({"x", "y"}))])
    assert ends(result) == {"x": 100, "y": 200}


def test_accounts_have_their_usage_by_day() -> None:
    usage: dict[float, tuple[float, ...]] = {}

    def note(snapshot: Snapshot, plan: Plan) -> None:
        usage[snapshot.now] = snapshot.accounts[0].used[:3]

    day = 86400.0
    jobs = [rigid("x", 0, 1, 3600), rigid("y", 1.9 * day, 1, 10), rigid("z", 1.5 * day, 1, 10)]
    run("fifo", nodes(a=1), *jobs, accounts=accounts_of(jobs), on_turn=note)
    assert usage[0.0] == (0, 0, 0)
    assert usage[1.5 * day] == (0, 3600, 0)
    assert usage[1.9 * day] == (10, 3600, 0)


def test_fairness_compares_with_a_share_of_ones_own() -> None:
    result = run("fifo", nodes(a=2), rigid("x", 0, 1, 1000), rigid("y", 0, 1, 1000))
    assert [row.rho for row in result.jobs] == [1.0, 1.0]
    late = run("fifo", nodes(a=1), rigid("x", 0, 1, 1000), rigid("y", 0, 1, 1000))
    # Two jobs at first, one after the other: x was alone with half a GPU; y shared with 1.5 on average.
    assert [row.rho for row in late.jobs] == [0.5, pytest.approx(2000 / 1500)]
    assert late.summary().unfair == 0.5


def test_equal_questions_get_equal_answers() -> None:
    jobs = [rigid(str(n), 7.0 * n % 50, 1 + n % 3, 20 + n) for n in range(30)]
    assert run("elastic_fifo", nodes(a=2, b=3), *jobs) == run("elastic_fifo", nodes(a=2, b=3), *jobs)


def test_what_happens_within_a_window_is_decided_together() -> None:
    turns: list[float] = []
    jobs = [rigid(str(n), at, 1, 500) for n, at in enumerate((0, 10, 59, 61))]
    options = Options(window_seconds=60)
    run("fifo", nodes(a=4), *jobs, options=options, on_turn=lambda snapshot, plan: turns.append(snapshot.now))
    assert turns[:2] == [60, 121]


def test_the_distant_future_is_decided_in_larger_windows_up_to_a_maximum() -> None:
    turns: list[float] = []
    jobs = [rigid(str(n), at, 1, 90_000) for n, at in enumerate((0, 10, 1000, 1099, 1101, 5000, 5150, 5250))]
    options = Options(window_part=0.1, max_window_seconds=200, tick_seconds=1e6)
    run("fifo", nodes(a=8), *jobs, options=options, on_turn=lambda snapshot, plan: turns.append(snapshot.now))
    assert turns == [0, 11, 1100, pytest.approx(1101 * 1.1), 5200, 5450]


def test_a_policy_is_not_asked_more_often_than_the_window_allows() -> None:
    turns: list[float] = []
    jobs = [rigid(name, 0, 1, 20_000, preemptible=True) for name in "xy"]
    run(
        "round_robin", nodes(a=1), *jobs, params={"rotate": "time", "slice_seconds": 60},
        options=Options(window_part=0.1), on_turn=lambda snapshot, plan: turns.append(snapshot.now),
    )  # fmt: skip
    assert len(turns) > 50
    assert all(after - before >= min(300.0, 0.09 * before) for before, after in zip(turns, turns[1:], strict=False))


def test_an_end_takes_time_and_the_gpus_are_held_until_then() -> None:
    slow = Submission(job("x", 0), lasts(100, 1), start_seconds=5, end_seconds=7)
    result = run("fifo", nodes(a=1), slow, rigid("y", 106, 1, 10))
    assert ends(result) == {"x": 5 + 100 + 7, "y": 122}
    assert result.jobs[0].lost_gpu_seconds == pytest.approx(5 + 7)


def test_a_job_that_has_made_its_last_step_ends_no_later_for_being_resized() -> None:
    wide = job("x", 0, 1, 2, elastic=True, resize_seconds=50)
    wide_job = Submission(wide, Plain(100, Curve((1.0, 2.0))), end_seconds=20)
    result = run("elastic_fifo", nodes(a=2), wide_job, rigid("y", 55, 1, 10))
    assert ends(result)["x"] == 50 + 20
    assert result.jobs[0].useful_gpu_seconds == pytest.approx(100)


def test_a_job_whose_gpus_change_trains_on_until_it_takes_notice() -> None:
    truth, changed = Plain(200, Curve((1.0, 2.0))), Interruption(2, 1)
    long = Submission(job("x", 0, 1, 2, elastic=True), truth, growing=Interruption(4, 6), shrinking=changed)
    result = run("elastic_fifo", nodes(a=2), long, rigid("y", 20, 1, 30), params={"grow_after_seconds": 0})
    assert ends(result)["y"] == 60
    # 44 s of work till 22, still till 23, 1 a second till 64, still till 70, 2 a second from then on
    assert ends(result)["x"] == pytest.approx(70 + (200 - 44 - 41) / 2)
    # One leaving and the other still for a second, one for seven seconds more; then one for four seconds, two for six.
    assert result.jobs[0].lost_gpu_seconds == pytest.approx(1 + 1 + 7 + 4 + 12)


def test_a_job_that_is_done_before_it_takes_notice_ends_when_it_is_done() -> None:
    short = Submission(job("x", 0, 1, 2, elastic=True), Plain(25, Curve((1.0, 2.0))), growing=Interruption(30, 6))
    result = run("elastic_fifo", nodes(a=2), rigid("y", -5, 1, 15), short, now=-5, params={"grow_after_seconds": 0})
    assert result.jobs[1].resizes == 1
    assert ends(result)["x"] == 25
