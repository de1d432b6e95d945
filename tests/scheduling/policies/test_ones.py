"""ONES: schedules that evolve, limits that double."""

from dataclasses import replace

from hypothesis import given, settings

from scheduling import registry
from scheduling.check import violations
from scheduling.optimise import allocation_search
from scheduling.policies.ones import Breeder, Ones
from scheduling.types import Curve, Estimate, Limit, Plan, Snapshot
from tests.examples import examples
from tests.scheduling.strategies import snapshots
from tests.scheduling.worlds import NOW, World, draw, running, sizes, waiting

WELL = Curve((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0))


def decide(snapshot: Snapshot, policy: Ones | None = None) -> Plan:
    plan = (policy or Ones()).plan(snapshot)
    assert violations(snapshot, plan) == []
    return plan


def test_it_is_marked_as_experimental() -> None:
    assert registry.describe("ones").experimental


def test_new_jobs_start_at_once_with_their_minimum() -> None:
    lab = draw({"a": 8}, waiting("x", 1, 8, speed=WELL), waiting("y", 2, 8, speed=WELL))
    assert sizes(decide(lab)) == {"x": 1, "y": 2}


def test_a_job_doubles_when_it_has_trained_at_its_limit_for_a_while_up_to_four_times_what_was_asked() -> None:
    world = World.of(draw({"a": 16}, waiting("x", 1, 16, asked_gpus=2, speed=Curve(tuple(range(1, 17))), elastic=True)))
    seen = []
    for _ in range(6):
        world.run_cycle(Ones(), seconds=121)
        seen.append(world.jobs["x"].gpus)
    assert seen == [1, 2, 4, 8, 8, 8]
    world = World.of(draw({"a": 16}, waiting("x", 1, 16, speed=WELL, elastic=True)))
    for _ in range(6):
        world.run_cycle(Ones(settle_seconds=1000), seconds=121)
    assert world.jobs["x"].gpus == 1


def test_no_job_gets_gpus_that_make_it_slower() -> None:
    x = running("x", {"a": 2}, 1, 8, speed=Curve((1.0, 2.0, 1.5, 1.4)), since=NOW - 600)
    assert sizes(decide(draw({"a": 8}, x))) == {"x": 2}


def test_the_job_with_the_least_left_goes_first() -> None:
    lab = draw(
        {"a": 1}, waiting("long", work=Estimate(1e5), run_seconds=60.0), waiting("short", work=Estimate(60.0), run_seconds=60.0)
    )  # fmt: skip
    assert sizes(decide(lab)) == {"short": 1}


def test_a_job_that_just_changed_is_not_disturbed() -> None:
    long = running("long", {"a": 1}, preemptible=True, work=Estimate(1e5), started_at=NOW - 60)
    lab = draw({"a": 1}, long, waiting("short", work=Estimate(60.0), run_seconds=60.0))
    assert sizes(decide(lab)) == {"long": 1}
    rested = replace(lab, jobs=(replace(long, started_at=NOW - 600), lab.jobs[1]))
    assert sizes(decide(rested)) == {}


def test_a_stop_must_win_the_gpu_time_that_it_costs() -> None:
    long = running("long", {"a": 1}, preemptible=True, work=Estimate(80.0), started_at=NOW - 600, restart_seconds=30.0)
    lab = draw({"a": 1}, long, waiting("short", work=Estimate(60.0), run_seconds=60.0))
    assert sizes(decide(lab)) == {"long": 1}


def test_who_holds_half_the_gpus_for_longer_than_the_others_is_scaled_down() -> None:
    big = running("big", {"a": 6}, 1, 8, speed=WELL, run_seconds=7200.0, started_at=NOW - 600)
    others = [running(id, {"a": 1}, 1, 1, speed=WELL, run_seconds=600.0, started_at=NOW - 600) for id in ("x", "y")]
    lab = draw({"a": 8}, big, *others, waiting("new", 1, 8, speed=WELL, work=Estimate(60.0), run_seconds=1.0))
    assert Breeder(Ones(), lab, allocation_search.problem_from(lab)).limits[0] < 6


def test_unknown_progress_is_epochs_over_epochs_and_ten() -> None:
    """Ten minutes are ten epochs: half done, so what is left is what was had."""
    x = running("x", {"a": 1}, 1, 2, run_seconds=600.0, served_gpu_seconds=600.0)
    lab = draw({"a": 2}, x)
    breeder = Breeder(Ones(), lab, allocation_search.problem_from(lab))
    assert breeder.expected[0] == 600.0
    reported = draw({"a": 2}, replace(x, progress=0.75))
    assert round(Breeder(Ones(), reported, allocation_search.problem_from(reported)).expected[0]) == 200


def test_a_limit_is_kept() -> None:
    limit = Limit("alice", 1, frozenset({"x", "y"}))
    assert len(sizes(decide(draw({"a": 4}, waiting("x"), waiting("y"), waiting("z"), limits=(limit,))))) == 2


def test_the_same_chances_are_drawn_for_the_same_world() -> None:
    lab = draw({"a": 4, "b": 4}, *(waiting(str(n), 1, 4, speed=WELL, run_seconds=1.0) for n in range(12)))
    assert decide(lab) == decide(lab)


@settings(max_examples=examples(30))
@given(snapshot=snapshots())
def test_every_schedule_it_breeds_fits(snapshot: Snapshot) -> None:
    problem = allocation_search.problem_from(snapshot)
    breeder = Breeder(Ones(generations=2), snapshot, problem)
    breeder.evolve()
    for one in breeder.population:
        assert sum(one) <= problem.gpus
        for candidate, count in zip(problem.candidates, one, strict=True):
            assert count <= candidate.max_gpus
            assert count >= candidate.min_gpus or (candidate.may_have_none and not count)


def test_the_clock_alone_makes_no_job_oscillate() -> None:
    world = World.of(
        draw(
            {"a": 5, "b": 3}, running("x", {"a": 4}, 1, 6, speed=WELL, work=Estimate(1e4)),
            waiting("y", 1, 4, elastic=True, preemptible=True, work=Estimate(3e4)), waiting("z", 1, 4, work=Estimate(2e4)),
        )
    )  # fmt: skip
    changes = []
    for _ in range(30):
        changes.append(world.run_cycle(Ones(), seconds=61))
        world.release()
    assert not any(changes[12:])
