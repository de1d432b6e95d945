"""How the benches of jobs compute the cost of a change, and whether a target is met."""

import pytest

from tests.bench import resize, training
from tests.bench.measure import Stamp
from tests.bench.resize import HeldGpu, Pauses
from tests.bench.rig import p95
from tests.bench.targets import Target, verdict


def steps(start: float, count: int, seconds: float, ranks: int) -> list[Stamp]:
    return [Stamp(start + seconds * number, ranks, number == 0) for number in range(count + 1)]


def test_a_pause_is_what_a_step_takes_beyond_the_usual() -> None:
    stamps = [*steps(0, 10, 0.4, 1), *steps(9, 10, 0.2, 2)]
    assert resize.pauses(stamps, after=4) == pytest.approx([9.2 - 4 - 0.2])


def test_training_that_begins_again_has_paused_however_shortly() -> None:
    stamps = [*steps(0, 10, 0.4, 1), *steps(4.1, 10, 0.2, 2)]
    assert resize.pauses(stamps, after=4) == pytest.approx([0.1])


def test_steps_before_the_decision_do_not_count() -> None:
    stamps = [*steps(0, 10, 0.2, 2), *steps(9, 10, 0.2, 2), *steps(11.5, 10, 0.4, 1)]
    assert resize.pauses(stamps, after=10) == pytest.approx([11.9 - 11 - 0.4])


def test_all_pauses_of_a_change_are_lost_and_the_longest_of_all_is_known() -> None:
    lost = Pauses()
    lost.changes[1] += [[0.5, 1.0], [1.25], []]
    assert lost.totals(1) == [1.5, 1.25, 0]
    assert (lost.longest(1), lost.longest(2)) == (1.25, 0)


def test_a_gpu_must_not_be_free_before_its_container_has_ended() -> None:
    held = [
        HeldGpu(1, "a", 0, 10, 12),
        HeldGpu(1, "b", 0, 10, 13),
        HeldGpu(2, "c", 0, 10, 14),
        HeldGpu(3, "d", 0, None, 9),
    ]
    back, samples, early, unseen = resize.release_targets(held, {"a": 11, "b": 13.5, "d": 8})
    assert (back.value, samples.value, early.value, unseen.value) == (4, 3, 1, 1)


def test_the_95th_percentile_of_few_is_their_highest() -> None:
    assert p95([3, 1, 2]) == 3
    assert p95(range(1, 101)) == 95


def test_a_target_is_held_up_to_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    maximum, minimum = Target("a", 2.0, 2.0, "s"), Target("b", 0.97, 0.98, at_least=True)
    assert (verdict([maximum]), verdict([maximum, minimum])) == (0, 1)
    assert "MISSED b: 0.97, at least 0.98" in capsys.readouterr().out


def test_speed_is_read_from_either_log_within_a_stretch() -> None:
    lines = [f"rank {rank} step {step} loss 2.3 at {step / 50:.4f}" for step in range(100, 1001, 20) for rank in (0, 1)]
    lines[0] = "rank 0 step 100 loss 2.3 at 0.5000"
    for log in ("\n".join(lines), "\n".join(f"[1,0]<stdout>:{line}" for line in lines)):
        assert training.speed(log, 4.0, 15.0) == pytest.approx(50)
    with pytest.raises(AssertionError, match="1 lines"):
        training.speed("\n".join(lines), 0.0, 2.3)
