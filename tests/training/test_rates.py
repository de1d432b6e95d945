"""Learning rates for other batches."""

import pytest

from runners.training.schedulearn_train.rates import factor


def test_the_rules_at_four_times_the_batch() -> None:
    assert factor("none", 256, 64) == 1
    assert factor("linear", 256, 64) == 4
    assert factor("sqrt", 256, 64) == 2


def test_adascale_lies_between_one_and_linear() -> None:
    assert factor("adascale", 256, 64, noise_scale=0) == 1
    assert factor("adascale", 256, 64, noise_scale=1e12) == pytest.approx(4)
    assert factor("adascale", 256, 64, noise_scale=128) == pytest.approx(2)
    assert factor("adascale", 256, 64) == 4  # noise not known yet


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        factor("linear", 0, 64)
