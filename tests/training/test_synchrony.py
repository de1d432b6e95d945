"""Whose gradients make an update."""

from hypothesis import given
from hypothesis import strategies as st

from runners.training.schedulearn_train import synchrony
from runners.training.schedulearn_train.synchrony import NEAR_BEST_SHARE, Expected, best_k, k_async, next_k_sync

times = st.floats(0.01, 10.0)
rounds = st.lists(st.builds(Expected, times, st.integers(1, 64)), min_size=1, max_size=12)


@given(rounds)
def test_no_other_k_uses_noticeably_more_samples_in_a_second_and_a_larger_one_noticeably_fewer(
    expected: list[Expected],
) -> None:
    order = sorted(expected, key=lambda worker: worker.seconds)

    def rate(k: int) -> float:
        return sum(worker.samples for worker in order[:k]) / order[k - 1].seconds

    rates = {k: rate(k) for k in range(1, len(order) + 1)}
    best, enough = best_k(expected), NEAR_BEST_SHARE * max(rates.values())
    assert rates[best] >= enough * (1 - 1e-9)
    assert all(each < enough * (1 + 1e-9) for k, each in rates.items() if k > best)


def test_one_slow_worker_of_four_is_not_waited_for_and_an_equal_one_is() -> None:
    fast, slow = Expected(1.0, 32), Expected(4.0, 32)
    assert best_k([fast, fast, fast, slow]) == 3
    assert best_k([fast] * 4) == 4
    assert synchrony.should_leave_out_worker([fast, fast, fast, slow])
    assert not synchrony.should_leave_out_worker([fast] * 4)
    assert not synchrony.should_leave_out_worker([slow])


@given(rounds, st.integers(1, 12), st.integers(1, 200))
def test_k_changes_by_one_and_never_below_half(expected: list[Expected], current: int, number: int) -> None:
    workers = len(expected)
    current = min(workers, max(synchrony.min_k(workers), current))
    k = next_k_sync(current, expected, number)
    assert synchrony.min_k(workers) <= k <= workers
    if number % synchrony.FORCED_ROUNDS:
        assert abs(k - current) <= 1
    else:
        assert k == workers


@given(st.lists(times, min_size=1, max_size=12), st.floats(1, 20))
def test_the_slowest_gradient_is_not_much_older_than_wanted(seconds: list[float], staleness: float) -> None:
    k = k_async(seconds, staleness)
    updates = max(seconds) * sum(1 / each for each in seconds) / k
    assert 1 <= k <= len(seconds)
    assert updates <= staleness * (1 + 1e-9) or k == len(seconds)


def test_older_gradients_count_less() -> None:
    assert synchrony.weight(32, 0) == 32
    assert synchrony.weight(32, 3) == 8
    assert synchrony.weight(32, 3, power=0) == 32


def test_who_leads_by_too_much_waits() -> None:
    assert synchrony.too_far_ahead(5, 4)
    assert not synchrony.too_far_ahead(4, 4)
    assert not synchrony.too_far_ahead(10**6, None)
