"""The speed model: what it learns from measured steps, and what it never predicts."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from scheduling.toolkit import performance
from scheduling.toolkit.performance import (
    Batches,
    Measurement,
    Model,
    Stats,
    best_batch,
    curve,
    curve_from_runs,
    efficiency,
    fit,
)
from tests.examples import examples

PLANTED = Model(a_c=0.05, b_c=0.002, a_n=0.12, b_n=0.006, a_r=0.03, b_r=0.004, g=2.0, largest=16, error=0.0)
PLACES = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 4), (2, 8), (3, 12), (4, 16))


def measured(
    model: Model, places: Any = PLACES, locals_: Any = (8, 16, 32, 64, 128), noise: float = 0.0
) -> list[Measurement]:
    random = np.random.default_rng(0)
    found = []
    for nodes, gpus in places:
        for local in locals_:
            step = float(model.step_seconds(nodes, gpus, local))
            wait = step - float(model.grad_seconds(local))
            factor = float(np.exp(noise * random.standard_normal()))
            found.append(Measurement(nodes, gpus, local, step * factor, 0, wait * factor))
    return found


def objective(theta: performance.Array, measurements: list[Measurement]) -> tuple[float, performance.Array]:
    """Return what ``fit`` minimises, and its gradient, at (log a_c, log b_c, log a_n, log b_n, log a_r, log b_r, g)."""
    errors, slopes = performance._Observations(measurements).residuals(np.asarray(theta, float)[None, :])
    return float(errors[0] @ errors[0]), 2 * errors[0] @ slopes[0]


def throughput(model: Model, nodes: int, gpus: int, local: Any, passes: Any = 0) -> float:
    """Return samples per second."""
    return float(gpus * local * (passes + 1) / model.step_seconds(nodes, gpus, local, passes))


def rates(largest: float = 10.0) -> st.SearchStrategy[float]:
    return st.floats(1e-5, largest)


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Each further GPU costs at most a fifth of the first two: the fit must expect no more."""
    a_c = draw(rates())
    a_r = a_c * draw(st.floats(0.001, 100))
    b_r, worse, part = a_r * draw(st.floats(0.001, 0.2)), draw(st.floats(1.0, 20.0)), draw(st.floats(0, 1))
    return Model(
        a_c,
        draw(rates(0.1)),
        a_r * worse,
        b_r * (1 + (worse - 1) * part),
        a_r,
        b_r,
        draw(st.floats(1.0, 10.0)),
        draw(st.integers(1, 64)),
        0.05,
    )


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    gpus = draw(st.integers(1, 64))
    step = draw(st.floats(1e-4, 1e4))
    wait = draw(st.none() | st.floats(0, 2).map(lambda part: part * step))
    passes = draw(st.integers(0, 8))
    return Measurement(draw(st.integers(1, gpus)), gpus, draw(st.integers(1, 4096)), step, passes, wait)


@st.composite
def batches(draw: st.DrawFn) -> Batches:
    asked = draw(st.integers(1, 4096))
    initial = draw(st.just(0) | st.integers(1, asked))
    maximum = draw(st.just(0) | st.integers(asked, 65536))
    return Batches(
        asked, maximum, draw(st.integers(1, 64)), draw(st.just(0) | st.integers(64, 512)), initial, draw(st.booleans())
    )


def test_it_recovers_planted_parameters() -> None:
    found = fit(measured(PLANTED))
    assert found is not None
    for name in ("a_c", "b_c", "a_n", "a_r", "g"):
        assert getattr(found, name) == pytest.approx(getattr(PLANTED, name), rel=0.05), name
    for name in ("b_n", "b_r"):
        assert getattr(found, name) == pytest.approx(getattr(PLANTED, name), rel=0.2), name
    assert found.largest == 16


@settings(max_examples=examples(60))
@given(models())
def test_it_predicts_what_any_planted_model_measures(model: Model) -> None:
    found = fit(measured(model))
    assert found is not None
    nodes, gpus, local = (
        np.array(column) for column in zip(*((n, g, b) for n, g in PLACES for b in (8, 64, 128)), strict=True)
    )
    ratio = found.step_seconds(nodes, gpus, local) / model.step_seconds(nodes, gpus, local)
    assert np.abs(np.log(ratio)).max() < 0.15
    assert np.sqrt((np.log(ratio) ** 2).mean()) < 0.05


def test_noise_shows_in_the_error() -> None:
    quiet, noisy = fit(measured(PLANTED, noise=0.01)), fit(measured(PLANTED, noise=0.2))
    assert quiet is not None and noisy is not None
    assert quiet.error == pytest.approx(0.02, abs=0.01)
    assert noisy.error == pytest.approx(0.2, abs=0.05)
    assert float(noisy.step_seconds(2, 8, 32)) == pytest.approx(float(PLANTED.step_seconds(2, 8, 32)), rel=0.15)


@given(st.lists(measurements(), min_size=1, max_size=6), st.data())
def test_the_gradient_agrees_with_finite_differences(found: list[Measurement], data: st.DataObject) -> None:
    theta = np.array([data.draw(st.floats(-6, 2)) for _ in range(6)] + [data.draw(st.floats(1.1, 6))])
    _, gradient = objective(theta, found)
    width = 1e-5
    for column in range(7):
        ahead, behind = theta.copy(), theta.copy()
        ahead[column] += width
        behind[column] -= width
        slope = (objective(ahead, found)[0] - objective(behind, found)[0]) / (2 * width)
        assert gradient[column] == pytest.approx(slope, rel=1e-3, abs=1e-4 * (1 + abs(objective(theta, found)[0])))


def test_another_optimiser_finds_nothing_better() -> None:
    points = measured(PLANTED, noise=0.15)
    found = fit(points)
    assert found is not None
    here = objective(performance._theta_of(found), points)[0]
    bounds = list(zip(performance.LOWER_BOUNDS, performance.UPPER_BOUNDS, strict=True))
    for start in ([-2, -6, -2, -6, -2, -6, 1.1], [-4, -8, -1, -4, -3, -5, 4.0], [0, -5, 0, -5, 0, -5, 8.0]):
        other = minimize(objective, np.array(start, float), args=(points,), jac=True, bounds=bounds)
        assert here <= other.fun * 1.001


@settings(max_examples=examples(200))
@given(st.lists(measurements(), min_size=1, max_size=12), batches(), st.integers(1, 128), st.integers(1, 8))
def test_whatever_was_measured_no_number_is_wild(
    found: list[Measurement], allowed: Batches, maximum: int, per_node: int
) -> None:
    model = fit(found)
    assert model is not None and np.isfinite(model.error) and model.error > 0
    for stats in (None, Stats(0.0, 1.0), Stats(1.0, 0.0), Stats(0.0, 0.0), Stats(2.0, 300.0)):
        known = curve(model, allowed, maximum, per_node, stats=stats)
        speeds = np.array(known.speeds)
        assert np.isfinite(speeds).all() and (speeds > 0).all()
        assert 0 < known.apart <= 1
        assert np.isfinite(known.error)
        if stats is None:
            assert known.batches == ()
        else:
            assert all(1 <= total <= max(allowed.max_total, allowed.asked) for total in known.batches)


@given(models(), st.integers(1, 64), st.integers(1, 512))
def test_times_grow_with_the_batch_the_gpus_and_the_distance(model: Model, gpus: int, local: int) -> None:
    step = float(model.step_seconds(1, gpus, local))
    slack = 1 + 1e-9
    assert float(model.step_seconds(1, gpus, local + 1)) * slack >= step
    assert float(model.step_seconds(1, gpus + 1, local)) * slack >= step
    assert float(model.step_seconds(2, max(2, gpus), local)) * slack >= step
    assert float(model.step_seconds(1, gpus, local, 1)) > step


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 4096), st.floats(1, 64))
def test_a_larger_batch_makes_each_sample_worth_less(sqr: float, var: float, initial: int, ratio: float) -> None:
    stats = Stats(sqr, var)
    assert float(efficiency(stats, initial, initial)) == pytest.approx(1.0)
    there = float(efficiency(stats, initial * ratio, initial))
    assert 0 < there <= 1 + 1e-9
    assert float(efficiency(stats, initial * ratio * 2, initial)) <= there + 1e-9


@given(models(), st.floats(0, 10), st.floats(0.1, 100), st.integers(1, 1024), st.integers(1, 16), st.integers(1, 4))
def test_a_free_batch_is_never_slower_than_the_one_asked(
    model: Model, sqr: float, var: float, asked: int, more: int, nodes: int
) -> None:
    allowed = Batches(asked, asked * more, max_local=128)
    fixed = curve(model, allowed, 16, nodes, stats=None)
    free = curve(model, allowed, 16, nodes, stats=Stats(sqr, var))
    assert all(best >= usual * 0.999 for best, usual in zip(free.speeds, fixed.speeds, strict=True))
    assert fixed.speeds[0] == pytest.approx(1.0)


@given(models(), st.floats(0, 10), st.floats(0.1, 100), batches(), st.integers(1, 32))
def test_the_best_batch_is_the_best_of_all_tried_one_by_one(
    model: Model, sqr: float, var: float, allowed: Batches, gpus: int
) -> None:
    stats, nodes = Stats(sqr, var), (gpus + 3) // 4
    total, value = (float(part[0]) for part in best_batch(model, stats, allowed, nodes, gpus))
    maximum = max(allowed.max_total, allowed.asked, allowed.start)
    minimum = min(max(allowed.start, gpus * allowed.min_local), maximum)
    for tried in np.geomspace(minimum, maximum, performance.BATCHES_TRIED):
        local, passes = performance.split(tried, gpus, allowed)
        real = gpus * float(local) * (float(passes) + 1)
        if real <= maximum:
            there = throughput(model, nodes, gpus, local, passes) * float(efficiency(stats, real, allowed.start))
            assert value >= there * (1 - 1e-6)
    assert total <= maximum


def test_noisy_gradients_ask_for_larger_batches_and_clear_ones_do_not() -> None:
    allowed = Batches(128, 8192, max_local=512)
    noisy = curve(PLANTED, allowed, 16, 4, stats=Stats(sqr=0.01, var=10.0))
    clear = curve(PLANTED, allowed, 16, 4, stats=Stats(sqr=10.0, var=0.01))
    assert noisy.batches[15] > 1024
    assert clear.batches[15] == 128
    assert noisy.speeds[15] > 2 * clear.speeds[15]


def test_no_job_grows_beyond_twice_what_was_measured() -> None:
    found = fit(measured(PLANTED, places=((1, 1), (1, 2))))
    assert found is not None
    assert len(curve(found, Batches(64), 32, 4).speeds) == 4
    assert len(curve(found, Batches(64), 3, 4).speeds) == 3


def test_one_gpu_teaches_nothing_about_communication_and_the_error_shows_it() -> None:
    found = fit(measured(PLANTED, places=((1, 1),)))
    assert found is not None
    known = curve(found, Batches(128), 8, 4)
    assert len(known.speeds) == 2
    assert known.error >= performance.UNSEEN_SYNC_ERROR


def test_what_was_only_measured_between_nodes_is_worth_trying_within_one() -> None:
    found = fit(measured(PLANTED, places=((1, 1), (2, 2), (2, 6))))
    assert found is not None
    assert throughput(found, 1, 2, 32) == pytest.approx(2 * throughput(found, 1, 1, 32), rel=0.01)
    assert throughput(found, 2, 2, 32) < 1.9 * throughput(found, 1, 1, 32)


def test_between_nodes_is_never_thought_quicker_than_within() -> None:
    found = fit(measured(PLANTED, places=((1, 1), (1, 2), (1, 4))))
    assert found is not None
    assert found.a_n >= found.a_r
    assert curve(found, Batches(256), 4, 4).apart < 1


def test_one_batch_size_leaves_half_of_a_pass_constant() -> None:
    found = fit(measured(PLANTED, locals_=(64,)))
    assert found is not None
    assert found.a_c == pytest.approx(float(PLANTED.grad_seconds(64)) / 2, rel=0.01)


def test_steps_without_a_measured_wait_are_used_too() -> None:
    whole = [Measurement(item.nodes, item.gpus, item.local_batch, item.step_seconds) for item in measured(PLANTED)]
    found = fit(whole)
    assert found is not None
    assert float(found.step_seconds(2, 8, 32)) == pytest.approx(float(PLANTED.step_seconds(2, 8, 32)), rel=0.05)


def test_nonsense_is_left_out() -> None:
    nonsense = [
        Measurement(1, 1, 32, float("nan")),
        Measurement(1, 1, 32, -1.0),
        Measurement(2, 1, 32, 1.0),
        Measurement(1, 2, 0, 1.0),
        Measurement(1, 2, 8, 1.0, 0, float("inf")),
    ]
    assert fit([]) is None
    assert fit(nonsense) is None
    assert fit([*nonsense, *measured(PLANTED)]) == fit(measured(PLANTED))


def test_equal_measurements_give_equal_models() -> None:
    assert fit(measured(PLANTED, noise=0.1)) == fit(measured(PLANTED, noise=0.1))


def test_kinds_of_gpus_are_compared_on_one() -> None:
    slow = Model(0.1, 0.004, 0.12, 0.006, 0.03, 0.004, 2.0, 4, 0.05)
    assert performance.kind_factors({"A100": PLANTED, "T4": slow}, "A100", Batches(64)) == {
        "A100": 1.0,
        "T4": pytest.approx(0.5),
    }


def test_alone_a_larger_batch_takes_two_passes_only_where_noise_shows_no_other_way() -> None:
    for twice, passes in ((False, 0), (True, 1)):
        allowed = Batches(64, 512, twice_alone=twice)
        assert performance.split(64, 1, allowed) == (64, 0)
        assert performance.split(256, 1, allowed) == (256 / (passes + 1), passes)
        assert performance.split(256, 2, allowed) == (128, 0)


def test_runs_at_one_size_give_no_curve() -> None:
    assert curve_from_runs([], 8) is None
    assert curve_from_runs([[(2, 100.0), (2, 90.0)]], 8) is None
    assert curve_from_runs([[(2, 100.0)], [(1, 5.0)]], 8) is None, "different work cannot be compared"


def test_runs_at_several_sizes_give_a_curve() -> None:
    many = curve_from_runs([[(1, 100.0), (2, 50.0), (4, 25.0)] * 30], 16)
    none = curve_from_runs([[(1, 100.0), (2, 100.0), (4, 100.0)] * 30], 16)
    few = curve_from_runs([[(1, 100.0), (2, 100.0)]], 16)
    assert many is not None and none is not None and few is not None
    assert many.source == "history"
    assert many.speeds[3] == pytest.approx(4, rel=0.05)
    assert none.speeds[3] == pytest.approx(1, rel=0.1)
    assert len(many.speeds) == 8
    assert len(few.speeds) == 4
    assert few.speeds[1] > 1.5
    assert few.error > many.error


def test_runs_of_different_work_are_compared_each_with_its_own() -> None:
    short, long = [(1, 100.0), (4, 50.0)] * 20, [(4, 5000.0), (8, 3536.0)] * 20
    together = curve_from_runs([short, long], 16)
    assert together is not None
    assert together.speeds[3] == pytest.approx(2, rel=0.05)


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 64), st.floats(1e-3, 1e7)), max_size=20), max_size=4), st.integers(1, 64)
)
def test_curves_from_runs_never_fall_and_never_beat_perfect(
    groups: list[list[tuple[int, float]]], maximum: int
) -> None:
    known = curve_from_runs(groups, maximum)
    if known is not None:
        speeds = np.array(known.speeds)
        assert speeds[0] == 1.0
        assert (np.diff(speeds) >= 0).all()
        assert (speeds <= np.arange(1, len(speeds) + 1) + 1e-9).all()
