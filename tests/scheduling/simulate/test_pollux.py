"""The measured world: a toy application with numbers that can be done in the head."""

from pathlib import Path

import pytest

from scheduling import registry
from scheduling.simulate import Options, simulate, traces
from scheduling.simulate.pollux import PolluxTruth, compact_shape, read_profiles, read_workload, shape_of
from scheduling.types import Job, Node

WORKLOAD = "name,time,application,num_replicas,batch_size\ntoy-0,0,toy,1,8\ntoy-1,10,toy,2,16\n"


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """One GPU takes 1 s a step with 8 samples and 2 s with 16; two take 0.5 s longer, on two nodes 1 s longer."""
    toy = tmp_path / "profiles" / "toy"
    toy.mkdir(parents=True)
    rows = ["placement,local_bsz,step_time,sync_time"]
    for placement, sync in (("1", 0.0), ("2", 0.5), ("11", 1.0), ("12", 1.0), ("22", 1.5)):
        rows += [f"{placement},{local},{local / 8 + sync},{sync}" for local in (4, 8, 16)]
    (toy / "placements.csv").write_text("\n".join(rows) + "\n")
    wide = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    wide += [f"{n},{n},{local},{local / 8 + 2},2" for n in (6, 8) for local in (4, 8, 16)]
    (toy / "scalability.csv").write_text("\n".join(wide) + "\n")
    head = "progress,iteration,metric,grad_sqr,grad_var"
    # Pure noise: a batch twice as large is worth two steps. In the second epoch no noise: it is worth one.
    (toy / "validation-8.csv").write_text(f"{head}\n100,100,0,0,1\n200,200,0,1,0\n")
    (toy / "validation-32.csv").write_text(f"{head}\n101,100,0,0,1\n203,200,0,1,0\n")
    return toy.parent


def truth(profiles: Path, batch: int, **more: object) -> PolluxTruth:
    return PolluxTruth(read_profiles(profiles)["toy"], batch, **more)  # type: ignore[arg-type]


def job(batch: int = 8) -> Job:
    return Job("toy-0", "alice", 0, 1, 4, batch=batch)


def test_an_epoch_ends_at_the_least_progress_any_batch_needed(profiles: Path) -> None:
    run = truth(profiles, 8).begin(job(), {})
    assert run.seconds_to_end({"a": 1}, 0) == 200


def test_the_value_of_a_larger_batch_follows_from_the_noise_of_its_epoch(profiles: Path) -> None:
    run = truth(profiles, 16).begin(job(16), {})
    # two GPUs, 8 samples each: 1.5 s a step, worth two steps in the first epoch and one in the second
    assert run.seconds_to_end({"a": 2}, 0) == pytest.approx(100 / 2 * 1.5 + 100 * 1.5)


def test_alone_more_than_the_first_batch_is_gathered_over_two_passes(profiles: Path) -> None:
    app = truth(profiles, 8).application
    assert app.split(1, 16) == (8, 1)
    assert app.step_seconds((1,), 16) == 2.0
    assert app.split(2, 16) == (8, 0)


def test_what_each_gpu_has_is_rounded_up_but_never_above_the_largest_batch(profiles: Path) -> None:
    app = truth(profiles, 8).application
    assert app.real_batch((1, 2), 16) == 18
    assert app.real_batch((1, 2), 32) == 30


def test_rotations_of_a_placement_are_one_and_others_lie_between_measured_ones(profiles: Path) -> None:
    assert shape_of({"a": 2, "b": 1}) == (1, 2)
    assert compact_shape(9, 4) == (1, 4, 4)
    app = truth(profiles, 8).application
    assert app.step_seconds((1,) * 7, 28) == pytest.approx(4 / 8 + 2)


def test_progress_made_in_pieces_is_progress_made_at_once(profiles: Path) -> None:
    run = truth(profiles, 8).begin(job(), {})
    for _ in range(3):
        run.advance(33.5, {"a": 1}, 0)
    assert run.seconds_to_end({"a": 1}, 0) == pytest.approx(200 - 100.5)
    known = run.known({"a": 1}, 0)
    assert known.work is not None
    assert known.work.value == pytest.approx(99.5)
    assert known.progress == pytest.approx(100.5 / 200)


def test_in_whole_seconds_the_rest_of_an_epoch_is_rounded_half_to_even(profiles: Path) -> None:
    run = truth(profiles, 8, whole_seconds=True).begin(job(), {})
    run.advance(0.5, {"a": 1}, 0)
    assert run.seconds_to_end({"a": 1}, 0) == 100 + 100  # 99.5 becomes 100
    run.advance(1.0, {"a": 1}, 0)
    assert run.seconds_to_end({"a": 1}, 0) == 98 + 100  # 98.5 becomes 98


def test_with_a_free_batch_each_size_has_the_best_one(profiles: Path) -> None:
    run = truth(profiles, 8, free=True).begin(job(), {})
    known = run.known({"a": 2}, 0)
    assert known.speed is not None and known.free_speed is not None
    # Pure noise: the more samples, the less the 0.5 s of talking weigh; 32 are as many as were validated.
    assert known.free_speed.batches[1] == 32
    assert known.free_speed.speeds[1] == pytest.approx((32 / 8) / 2.5)
    run.advance(1000, {"a": 1}, 8)
    assert run.seconds_to_end({"a": 1}, 8) == 0


def test_the_modes_determine_what_may_change(profiles: Path) -> None:
    apps = read_profiles(profiles)
    rigid, fixed, free = (read_workload(WORKLOAD, apps, mode)[1].job for mode in ("rigid", "fixed", "free"))
    assert (rigid.min_gpus, rigid.max_gpus, rigid.elastic) == (2, 2, False)
    assert (fixed.min_gpus, fixed.max_gpus, fixed.elastic) == (1, 4, True)
    assert (free.min_gpus, free.max_gpus, free.elastic) == (1, 8, True)


def test_learnt_speeds_begin_with_nothing_and_come_near_the_truth(profiles: Path) -> None:
    apps = read_profiles(profiles)
    one, other = read_workload(WORKLOAD, apps, "free", knowledge="learnt")
    run, late = one.truth.begin(one.job, {}), other.truth.begin(other.job, {})
    assert run.known({}, 0).speed is None
    for shape in ({"a": 1}, {"a": 2}):
        for batch in (8, 16, 32):
            run.advance(1, shape, batch)
    learnt, true = late.known({}, 0).speed, apps["toy"].curve(16, 4)
    assert learnt is not None
    assert learnt.speeds[1] == pytest.approx(true.speeds[1], rel=0.1)
    assert late.known({}, 0).work is None


def test_a_changed_set_of_gpus_costs_half_a_minute_the_first_one_too(profiles: Path, tmp_path: Path) -> None:
    trace = tmp_path / "toy.csv"
    trace.write_text(WORKLOAD)
    jobs = traces.read(trace, profiles, "rigid", whole_seconds=True)
    nodes = [Node(name, name, 4, 4) for name in "ab"]
    result = simulate(registry.build("fifo", {}), nodes, jobs, options=Options(round_seconds=60))
    assert [row.ended_at for row in result.jobs] == [30 + 200, 60 + 30 + 75 + 150]
