"""The modes with a parameter server, on real ranks under torchrun."""

from typing import Any

import pytest

from tests.training.real_ranks import LAUNCHERS, SCRIPTS, finished, run

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def served(job_python: str) -> dict[str, Any]:
    return run([*LAUNCHERS["torchrun"], str(SCRIPTS / "served.py")], job_python)


OPTIMISERS = pytest.mark.parametrize("optimiser", ["SGD", "Adam", "own"])


@OPTIMISERS
def test_a_parameter_server_that_waits_for_all_does_what_one_process_does(
    served: dict[str, Any], optimiser: str
) -> None:
    assert served[optimiser]["waiting_for_all_is_bsp"] < 1e-6


@OPTIMISERS
def test_a_parameter_server_in_several_shards_does_what_one_does(served: dict[str, Any], optimiser: str) -> None:
    """Tensors are cut through, but not for an unknown optimiser; the states of the parts are merged again."""
    found = served[optimiser]
    assert max(found["2 shards"], found["3 shards"]) < 1e-10  # gradients arrive in any order


@OPTIMISERS
def test_a_checkpoint_of_several_shards_is_gone_on_from_with_another_number(
    served: dict[str, Any], optimiser: str
) -> None:
    assert served[optimiser]["goes_on"] < 1e-6
    assert served[optimiser]["steps"] == [17, 16, 27, 27]


@pytest.mark.thorough
def test_a_shard_that_fails_on_another_rank_ends_the_training_with_the_reason(job_python: str) -> None:
    done = finished([*LAUNCHERS["torchrun"], str(SCRIPTS / "broken.py")], job_python)
    assert done.returncode != 0
    assert "ValueError: this optimiser cannot" in done.stderr


@pytest.mark.parametrize("mode", ["ksync", "adaptive_ksync", "kasync", "adaptive_kasync", "asp"])
def test_each_mode_learns_uses_each_sample_once_per_epoch_and_ends_the_same_everywhere(
    served: dict[str, Any], mode: str
) -> None:
    found = served[mode]
    assert found["used"] == 12
    assert found["loss"] < 0.01
    assert found["same_everywhere"] and found["momentum"]
    assert (found["staleness"] == 0) == ("ksync" in mode)


@pytest.mark.parametrize("mode", ["ksync", "kasync", "asp"])
def test_a_parameter_server_reports_the_time_of_a_whole_batch_though_updates_have_less(
    served: dict[str, Any], mode: str
) -> None:
    assert served[mode]["time_reported"] == pytest.approx(1.0, abs=0.25)


def test_equal_ranks_that_may_leave_some_out_are_in_step_and_need_no_server(served: dict[str, Any]) -> None:
    assert not served["equal"]["apart"]
    assert served["equal"]["off"] < 1e-12


def test_ranks_leave_lockstep_when_one_is_slow_and_return_when_it_is_not(served: dict[str, Any]) -> None:
    """With nothing lost or done twice. On their return all are the same, what the optimiser has learnt included."""
    found = served["meeting"]
    assert found["ways"][:3] == [False, True, False]
    assert found["used"] == 18
    assert found["apart_on_return"] == [0]
    assert found["apart"] == 0


def test_a_slow_worker_of_a_parameter_server_gets_less_to_do_and_the_others_what_fits(served: dict[str, Any]) -> None:
    parts = served["ksync"]["parts"]
    assert parts[2] < parts[0] <= 5 and sum(parts) == 12


def test_a_parameter_server_of_one_rank_is_an_ordinary_training(served: dict[str, Any]) -> None:
    assert served["alone"] == 3 * 9
