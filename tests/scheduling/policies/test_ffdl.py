"""FfDL: the most useful work per second, batch and GPUs chosen together."""

from dataclasses import replace

import pytest

from scheduling.check import violations
from scheduling.policies.ffdl import Ffdl
from scheduling.types import Curve, Estimate, Job, Limit, Plan, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.worlds import NOW, World, draw, running, sizes, waiting

WELL = Curve((1.0, 2.0, 3.0, 4.0))
BADLY = Curve((1.0, 1.1, 1.2, 1.3))


def decide(snapshot: Snapshot, policy: Ffdl | None = None) -> Plan:
    plan = (policy or Ffdl()).plan(snapshot)
    assert violations(snapshot, plan) == []
    return plan


def new(id: str, curve: Curve, **facts: object) -> Job:
    return waiting(id, 1, 4, speed=curve, submitted_at=NOW, **facts)


def test_gpus_go_where_they_speed_up_training_the_most() -> None:
    assert sizes(decide(draw({"a": 5}, new("well", WELL), new("badly", BADLY)))) == {"well": 4, "badly": 1}


def test_a_curve_that_is_not_concave_is_seen_as_a_whole() -> None:
    """The second GPU brings nothing without the third and fourth: greedy steps of one would never take it."""
    step = Curve((1.0, 1.0, 1.0, 6.0))
    assert sizes(decide(draw({"a": 5}, new("step", step), new("well", WELL)))) == {"step": 4, "well": 1}


def test_counts_fit_on_whole_nodes_and_what_is_left_over_is_given_as_well() -> None:
    slower = Curve((1.0, 1.9, 2.8, 3.6))
    lab = draw({"a": 4, "b": 4}, *(new(id, slower) for id in "xyz"))
    assert sorted(sizes(decide(lab)).values()) == [2, 2, 4]
    three = draw({"a": 3, "b": 4}, new("x", slower), new("y", slower))
    assert sorted(sizes(decide(three)).values()) == [3, 4]


def test_the_batch_is_chosen_with_the_gpus() -> None:
    free = Curve((1.0, 1.9, 2.8, 3.6), batches=(64, 128, 192, 256))
    lab = draw({"a": 4}, new("x", BADLY, free_speed=free, batch=64), new("y", WELL))
    plan = decide(lab)
    assert plan.batches["x"] == 64 * sizes(plan)["x"]
    alone = decide(draw({"a": 4}, new("x", BADLY, free_speed=free, batch=64)))
    assert alone.batches == {"x": 256}


def test_with_the_batch_as_asked_it_is_its_own_baseline() -> None:
    free = Curve((1.0, 3.0, 5.0, 7.0), batches=(64, 128, 192, 256))
    lab = draw({"a": 5}, new("x", BADLY, free_speed=free), new("y", WELL))
    assert sizes(decide(lab)) == {"x": 4, "y": 1}
    baseline = decide(lab, Ffdl(batch="asked"))
    assert sizes(baseline) == {"x": 1, "y": 4}
    assert not baseline.batches


def test_a_running_elastic_job_gives_way_to_one_that_uses_gpus_better() -> None:
    lab = draw({"a": 4}, running("x", {"a": 4}, 1, 4, speed=BADLY), waiting("y", 3, 3, speed=WELL))
    plan = decide(lab)
    assert sizes(plan) == {"x": 1}
    assert reasons_of(plan) == {"y": "3 GPUs are being given back by other jobs; then it starts."}


def test_by_worth_a_job_that_gains_little_waits_and_in_order_it_does_not() -> None:
    slow = waiting("slow", 3, 3, speed=BADLY, submitted_at=NOW - 1)
    lab = draw({"a": 4}, slow, new("well", WELL))
    assert sizes(decide(lab)) == {"well": 4}
    assert sizes(decide(lab, Ffdl(admission="in_order"))) == {"slow": 3, "well": 1}


def test_waiting_makes_the_claim_stronger_until_it_wins() -> None:
    lab = draw({"a": 4}, waiting("slow", 3, 3, speed=BADLY, submitted_at=NOW), new("well", WELL))
    assert sizes(decide(lab)) == {"well": 4}
    later = replace(lab, jobs=(replace(lab.jobs[0], submitted_at=NOW - 8 * 3600), lab.jobs[1]))
    assert sizes(decide(later)) == {"slow": 3, "well": 1}
    assert sizes(decide(later, Ffdl(waiting_bonus=0.0))) == {"well": 4}


def test_the_bonus_for_waiting_ends_when_the_job_starts() -> None:
    """What a running job waited before it started does not hold its GPUs against a job that comes now."""
    plans = [
        decide(draw({"a": 4}, running("x", {"a": 4}, 1, 4, speed=BADLY, submitted_at=NOW - waited), new("y", WELL)))
        for waited in (1.0, 8 * 3600.0)
    ]
    assert sizes(plans[0]) == sizes(plans[1])


def test_a_job_that_was_stopped_waits_from_then_on() -> None:
    def lab(since: float) -> Snapshot:
        slow = waiting("slow", 3, 3, speed=BADLY, submitted_at=NOW - 80 * 3600, since=NOW - since)
        return draw({"a": 4}, slow, new("well", WELL))

    assert sizes(decide(lab(60.0))) == {"well": 4}
    assert sizes(decide(lab(3599.0), Ffdl(waiting_bonus=100.0))) == {"well": 4}, "only full hours count"
    assert sizes(decide(lab(3601.0), Ffdl(waiting_bonus=100.0))) == {"slow": 3, "well": 1}
    assert sizes(decide(lab(8 * 3600.0))) == {"slow": 3, "well": 1}


def test_short_jobs_are_favoured_only_as_far_as_asked() -> None:
    """The plain sum of speed-ups gives a job of days as much as one of minutes."""
    short, long = new("short", WELL, work=Estimate(60.0)), new("long", Curve((1.0, 2.1, 3.2, 4.3)), work=Estimate(1e6))
    lab = draw({"a": 4}, long, short)
    assert sizes(decide(lab)) == {"short": 4}
    assert sizes(decide(lab, Ffdl(favour_short=0.0))) == {"long": 4}


def test_a_job_of_unknown_length_is_taken_for_as_long_again_as_it_was_served() -> None:
    def lab(**facts: object) -> Snapshot:
        jobs = [replace(new(id, WELL), max_gpus=1, **has) for id, has in (("x", facts), ("y", {}))]  # type: ignore[arg-type]
        return draw({"a": 1}, *jobs)

    assert sizes(decide(lab(served_gpu_seconds=36_000.0))) == {"y": 1}
    assert sizes(decide(lab(served_gpu_seconds=36_000.0, work=Estimate(60.0)))) == {"x": 1}


def test_weight_and_priority_count() -> None:
    assert sizes(decide(draw({"a": 1}, new("x", WELL), new("y", WELL, weight=2.0)))) == {"y": 1}
    assert sizes(decide(draw({"a": 1}, new("x", WELL, weight=1.5), new("y", WELL, priority=1)))) == {"y": 1}


def test_a_change_must_win_more_than_it_costs() -> None:
    """From 2 and 2 to 3 and 1 (which begins with y giving back) is worth 0.1 a second, and costs two resizes."""
    better, worse = Curve((1.0, 1.6, 2.2)), Curve((1.0, 1.5, 2.0))
    long = {"resize_seconds": 60.0, "work": Estimate(1e6)}
    x = running("x", {"a": 2}, 1, 3, speed=better, **long)
    y = running("y", {"a": 2}, 1, 3, speed=worse, **long)
    assert sizes(decide(draw({"a": 4}, x, y))) == {"x": 2, "y": 2}
    assert sizes(decide(draw({"a": 4}, x, y), Ffdl(horizon_seconds=86_400))) == {"x": 2, "y": 1}


def test_a_change_must_win_what_it_costs_before_the_job_ends() -> None:
    def grows(seconds: float) -> bool:
        job = running("x", {"a": 2}, 1, 4, speed=WELL, resize_seconds=10.0, work=Estimate(2 * seconds))
        return sizes(decide(draw({"a": 4}, job))) == {"x": 4}

    assert grows(40.0) and not grows(20.0)


def test_no_job_is_stopped_for_jobs_that_end_before_the_stop_pays_off() -> None:
    def stops(seconds: float) -> bool:
        x = running("x", {"a": 1}, preemptible=True, work=Estimate(16 * seconds), restart_seconds=30.0)
        y = waiting("y", 1, 1, submitted_at=NOW, work=Estimate(seconds))
        return sizes(decide(draw({"a": 1}, x, y))) == {}

    assert stops(400.0) and not stops(20.0)


def test_a_preemptible_job_stops_only_for_one_that_is_worth_more_than_the_stop() -> None:
    x = running("x", {"a": 2}, preemptible=True, speed=Curve((1.0, 1.0)))
    assert sizes(decide(draw({"a": 2}, x, waiting("y", 2, 2, speed=Curve((1.0, 1.0)), submitted_at=NOW)))) == {"x": 2}
    plan = decide(draw({"a": 2}, x, waiting("y", 2, 2, speed=WELL, submitted_at=NOW)))
    assert sizes(plan) == {}
    assert reasons_of(plan) == {"y": "2 GPUs are being given back by other jobs; then it starts."}


def test_what_is_given_back_slowly_still_goes_to_whom_it_was_meant_for() -> None:
    policy = Ffdl()
    world = World.of(draw({"a": 4}, running("x", {"a": 4}, 1, 4, speed=BADLY), waiting("y", 3, 3, speed=WELL)))
    for _ in range(4):
        world.run_cycle(policy, seconds=400)
        world.release(1)
    world.run_cycle(policy)
    assert {id: job.gpus for id, job in world.jobs.items()} == {"x": 1, "y": 3}


def test_a_limit_is_kept_and_the_rest_goes_to_others() -> None:
    limit = Limit("alice", 3, frozenset({"x", "y"}))
    lab = draw({"a": 8}, new("x", WELL), new("y", WELL), new("z", BADLY, owner="bob"), limits=(limit,))
    plan = decide(lab)
    assert sum(sizes(plan)[id] for id in ("x", "y") if id in sizes(plan)) == 3
    assert sizes(plan)["z"] == 4


@pytest.mark.parametrize("admission", ["optional", "in_order"])
def test_the_clock_alone_makes_no_job_oscillate(admission: str) -> None:
    world = World.of(
        draw({"a": 5, "b": 3}, running("x", {"a": 4}, 1, 6, speed=WELL), new("y", BADLY, elastic=True), new("z", WELL))
    )
    policy = Ffdl(admission=admission)
    changes = []
    for _ in range(40):
        changes.append(world.run_cycle(policy, seconds=301))
        world.release()
    assert not any(changes[15:]), "once the job that scales badly has waited for long enough, it runs beside the others"


def test_nodes_without_a_healthy_gpu_are_no_trouble() -> None:
    plan = decide(draw({"a": 0, "b": 0}, new("x", WELL)))
    assert "only 0" in reasons_of(plan)["x"]
