"""Batches that are split between real ranks, under torchrun and Horovod: what is learnt does not depend on the split."""

from statistics import median
from typing import Any

import pytest

from tests.examples import HUNT
from tests.training.real_ranks import LAUNCHERS, SCRIPTS, run

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(400)]


@pytest.fixture(scope="module", params=["horovod", pytest.param("torchrun", marks=pytest.mark.thorough)])
def split(request: pytest.FixtureRequest, job_python: str) -> dict[str, Any]:
    cases = [] if HUNT else ["pairs"]
    return run([*LAUNCHERS[request.param], str(SCRIPTS / "splits.py"), *cases], job_python)


def test_any_split_of_a_batch_gives_the_update_of_one_process(split: dict[str, Any]) -> None:
    assert split["ranks"] == 3
    assert split["worst"] < 1e-6


def test_ranks_that_wait_for_each_other_in_a_step_know_who_is_slow(split: dict[str, Any]) -> None:
    """Usually, once they have found it: what else the machine does for a moment may move a single split."""
    assert all(sum(parts) == 24 for parts in split["balanced"])
    slow, *others = map(median, zip(*split["balanced"][20:], strict=True))
    assert slow <= 5 and min(others) >= 9


def test_a_part_of_a_single_sample_teaches_batch_normalisation_nothing(split: dict[str, Any]) -> None:
    assert split["learnt"] == 0


def test_the_noise_of_gradients_is_measured_on_several_ranks_and_on_one(split: dict[str, Any]) -> None:
    """Each of them in one pass and in several."""
    assert len(split["noise"]) == 4
    for sqr, var in split["noise"]:
        assert sqr == pytest.approx(1.0, abs=0.25)
        assert var == pytest.approx(1.0, abs=0.25)
