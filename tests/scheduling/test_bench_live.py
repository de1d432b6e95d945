"""How ``make bench-live`` reads costs from rows and logs, and passes them to the simulator."""

from dataclasses import replace

import pytest

from scheduling.types import Job
from tests.bench import live, measure
from tests.bench.measure import Durations, HeldGpu, JobHistory, Stamp, Work

DISTRIBUTED = Job("1", "ada", 98.0, 2, 3, elastic=True, nodes=frozenset({"n"}))
PLAIN = Job("2", "ada", 100.0, 1, 1, preemptible=True, nodes=frozenset({"n"}))


def steps(start: float, count: int, seconds: float, ranks: int) -> list[Stamp]:
    """Return the stamps of a training that begins and makes ``count`` steps."""
    return [Stamp(start + seconds * number, ranks, number == 0) for number in range(count + 1)]


def resized() -> JobHistory:
    """Given two GPUs at 100, a third at 130, asked for it back at 160."""
    stamps = [*steps(112, 21, 1.0, 2), *steps(140, 20, 1.0, 3), *steps(163, 10, 1.0, 2)]
    held = [HeldGpu(100, None, 175), HeldGpu(100, None, 175), HeldGpu(130, 160, 166)]
    return JobHistory(DISTRIBUTED, Work(51, 1.8, distributed=True), 175.0, 98.5, [held], stamps)


def stopped() -> JobHistory:
    """Return a job that gets a GPU at 101, is asked to stop at 110, and gets it again at 120."""
    stamps = [*steps(103, 6, 1.0, 1), *steps(124, 4, 1.0, 1)]
    held = [[HeldGpu(101, 110, 112)], [HeldGpu(120, None, 130)]]
    return JobHistory(PLAIN, Work(10, 0.9, distributed=False), 130.0, 100.5, held, stamps)


def test_stamps_are_found_among_other_lines_of_a_log() -> None:
    text = "hello\nbegin on 2 at 10.500\nstep 1 on 2 at 11.250\nstep by step\nstep 2 on 3 at 9.000\n"
    assert measure.stamps_of(text) == [Stamp(9.0, 3, False), Stamp(10.5, 2, True), Stamp(11.25, 2, False)]


def test_starts_ends_and_steps_are_measured_by_kind() -> None:
    costs = measure.measure_costs([resized(), stopped()])
    assert costs.first_cycle == Durations((0.5, 0.5))
    assert (costs.start[True].mean, costs.start[False].mean) == (12, 2)
    assert (costs.end[True].mean, costs.end[False].mean) == (2, 2)
    assert costs.overhead(2, True) == pytest.approx(1.0 - 0.9)
    assert costs.overhead(3, True) == pytest.approx(1.0 - 0.6)
    assert costs.overhead(1, True) == costs.overhead(2, True)
    assert costs.overhead(1, False) == pytest.approx(0.1)


def test_a_change_is_noticed_after_some_time_and_training_then_pauses() -> None:
    costs = measure.measure_costs([resized()])
    assert (costs.notice[True].mean, costs.still[True].mean) == (133 - 130, 140 - 133)
    assert (costs.notice[False].mean, costs.still[False].mean) == (0, 163 - 160)
    assert (costs.give_back.seconds, costs.unmatched) == ((6,), 0)


def test_a_change_that_comes_in_two_bites_stands_still_for_both() -> None:
    stamps = [*steps(0, 20, 1.0, 1), *steps(26, 4, 1.0, 2), *steps(33, 5, 1.0, 3)]
    (change,) = changes = measure.changes_of(
        [HeldGpu(-9, None, 50), HeldGpu(12, None, 50), HeldGpu(12.5, None, 50)], 38
    )
    measure.match_changes(changes, stamps, 1)
    assert (change.by, change.effective_at, change.still, change.left) == (2, 20, 6 + 3, 0)


def test_what_is_taken_back_before_it_came_was_never_felt() -> None:
    lived = replace(resized(), attempts=[[HeldGpu(100, None, 175), HeldGpu(100, None, 175), HeldGpu(141, 146, 147)]])
    lived = replace(lived, stamps=steps(112, 61, 1.0, 2))
    assert measure.measure_costs([lived]).unmatched == 2


def test_a_change_before_training_began_is_a_part_of_its_start() -> None:
    """It gets three at 0, and is asked for one at 2 and for another at 30; training begins on two."""
    stamps = [*steps(10, 21, 1.0, 2), *steps(33, 5, 1.0, 1)]
    changes = measure.changes_of([HeldGpu(0, None, 50), HeldGpu(0, 2, 4), HeldGpu(0, 30, 35)], 38)
    measure.match_changes(changes, stamps, 3)
    assert [(change.at, change.effective_at, change.still) for change in changes] == [(2, None, 0), (30, 31, 2)]


def test_changes_that_cancel_each_other_out_are_not_taken_for_a_later_one() -> None:
    """Given one more at 12, asked for it at 14 before it came, given another at 20."""
    stamps = [*steps(0, 24, 1.0, 1), *steps(29, 5, 1.0, 2)]
    changes = measure.changes_of([HeldGpu(-9, None, 50), HeldGpu(12, 14, 15), HeldGpu(20, None, 50)], 38)
    measure.match_changes(changes, stamps, 1)
    assert [(change.at, change.effective_at, change.still) for change in changes] == [
        (12, None, 0),
        (14, None, 0),
        (20, 24, 5),
    ]


def test_a_stop_is_no_resize_and_what_follows_it_is_a_restart() -> None:
    costs = measure.measure_costs([stopped()])
    assert costs.restart[False] == Durations((4,))
    assert costs.give_back == Durations((2,))
    assert not costs.notice[False].seconds and not costs.unmatched


def test_an_attempt_that_came_to_nothing_makes_the_next_one_no_restart() -> None:
    held = [[HeldGpu(80, None, 84)], [HeldGpu(101, None, 120)]]
    lived = replace(stopped(), attempts=held, stamps=steps(103, 10, 1.0, 1), ended=120.0)
    costs = measure.measure_costs([lived])
    assert (costs.start[False], costs.restart[False], costs.failed_starts) == (Durations((2,)), Durations(), 1)


def test_what_was_measured_of_a_job_makes_the_simulator_take_as_long() -> None:
    lived = replace(resized(), stamps=steps(112, 51, 1.0, 2), ended=165.0)
    lived = replace(
        lived, attempts=[[HeldGpu(100, None, 165), HeldGpu(100, None, 165)]], job=replace(DISTRIBUTED, max_gpus=2)
    )
    lived = replace(lived, first_cycle_at=100.0)
    compared = live.compare("fifo", [lived])
    assert compared.errors == pytest.approx((0.0, 0.0))
    assert compared.is_within_deviation and "| 1 | Horovod | 2 to 2 |" in compared.report()


def test_a_simulation_that_is_off_is_called_so() -> None:
    compared = live.compare("fifo", [stopped()])
    assert compared.figures[1].turnaround < 0.6 * compared.figures[0].turnaround
    assert not compared.is_within_deviation


def test_the_trace_comes_from_its_seed_and_fits_its_time() -> None:
    jobs = live.trace(30)
    assert jobs == live.trace(30) != live.trace(30, seed=1)
    assert 20 <= len(jobs) <= 30 and {job.work.distributed for job in jobs} == {True, False}
    assert max(job.at for job in jobs) < 30 * 60
    work = sum(job.work.steps * job.work.step_seconds for job in jobs)
    assert 0.6 < work / (live.SLOTS * 30 * 60) < 1.0
    assert all(job.min_gpus <= job.max_gpus <= live.SLOTS for job in jobs)
    assert 6 <= len(live.trace(5)) < 10
