"""The noise of gradients from what ranks see of it, against gradients whose noise is known."""

import numpy as np
import pytest

from runners.training.schedulearn_train.noise import Noise

CHANCE = np.random.default_rng(4)
TRUE = CHANCE.normal(size=200)
SPREAD = 3.0
"""Of each part of a single sample's gradient."""
SQR, VAR = float(TRUE @ TRUE), SPREAD**2 * len(TRUE)


def gradient(samples: int) -> np.ndarray:
    """The mean of so many samples' gradients."""
    return TRUE + CHANCE.normal(scale=SPREAD / np.sqrt(samples), size=len(TRUE))


@pytest.mark.parametrize("parts", [(16, 16), (8, 8, 8, 8), (20, 7, 5)])
def test_it_follows_from_the_gradients_of_several_ranks(parts: tuple[int, ...]) -> None:
    noise, batch = Noise(), sum(parts)
    for _ in range(400):
        each = [gradient(samples) for samples in parts]
        whole = np.average(each, axis=0, weights=parts)
        own = np.mean([one @ one for one in each])
        noise.observe(float(own), float(np.mean([1 / samples for samples in parts])), float(whole @ whole), batch)
    assert noise.sqr == pytest.approx(SQR, rel=0.15)
    assert noise.var == pytest.approx(VAR, rel=0.15)
    assert noise.scale == pytest.approx(VAR / SQR, rel=0.3)


def test_it_follows_from_two_steps_of_a_single_rank() -> None:
    noise = Noise()
    for _ in range(400):
        one, other = gradient(32), gradient(32)
        apart = one - other
        noise.observe_single_rank(float(apart @ apart), float(other @ other), 32)
    assert noise.sqr == pytest.approx(SQR, rel=0.15)
    assert noise.var == pytest.approx(VAR, rel=0.15)


def test_nothing_is_known_at_first_and_a_single_part_shows_nothing() -> None:
    noise = Noise()
    noise.observe(5.0, 1 / 32, 5.0, 32)
    assert not noise.known and noise.scale is None


def test_it_goes_on_as_if_never_stopped() -> None:
    one, other = Noise(), Noise()
    one.observe(9.0, 1 / 8, 4.0, 32)
    other.load_state_dict(one.state_dict())
    assert (other.sqr, other.var) == (one.sqr, one.var) and one.known


def test_gradients_of_nothing_but_noise_have_no_length() -> None:
    noise = Noise()
    noise.observe_single_rank(10.0, 3.0, 16)
    assert noise.sqr == 0 and noise.scale is None
