"""The library on real ranks: processes of a job environment, under torchrun and Horovod."""

from pathlib import Path
from typing import Any

import pytest

from tests.training.real_ranks import LAUNCHERS, SCRIPTS, finished, run

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(400)]


@pytest.mark.parametrize("launcher", ["horovod", pytest.param("torchrun", marks=pytest.mark.thorough)])
def test_a_loss_curve_goes_on_with_another_number_of_ranks_as_if_never_stopped(launcher: str, job_python: str) -> None:
    """From one rank to three and back, with what Adam and a schedule had learnt."""
    found = run([*LAUNCHERS[launcher], str(SCRIPTS / "resumed.py")], job_python)
    assert (found["ranks"], found["steps"]) == (3, 30)
    assert found["off"] < 1e-9
    assert found["fell_to"] < 0.7


@pytest.mark.thorough
def test_ranks_end_well_though_their_collectives_threads_are_late(job_python: str, tmp_path: Path) -> None:
    """They wait for Python's lock when Python ends, which would end them by force, and the ranks with them."""
    done = finished([*LAUNCHERS["torchrun"], str(SCRIPTS / "late.py")], job_python, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def alone(job_python: str) -> dict[str, Any]:
    return run([job_python, str(SCRIPTS / "alone.py")], job_python)


def test_a_loop_that_forgets_a_step_or_a_batch_gets_an_error(alone: dict[str, Any]) -> None:
    assert "once for each batch" in alone["a_step_without_a_batch"]
    assert "each batch needs its step" in alone["a_batch_without_a_step"]


def test_a_loss_for_each_sample_is_refused_with_what_to_do(alone: dict[str, Any]) -> None:
    assert alone["a_loss_for_each_sample"].endswith("takes one number, not (8, 1): use loss.mean(), or loss.sum()")


def test_an_unknown_mode_is_refused_with_the_known_ones(alone: dict[str, Any]) -> None:
    assert alone["a_mode_that_is_none"].endswith(
        "bsp, bsp_balanced, ksync, adaptive_ksync, kasync, adaptive_kasync, asp"
    )


def test_the_mode_of_the_jobs_form_counts_more_than_that_of_its_code(alone: dict[str, Any]) -> None:
    assert alone["the_form_chooses_the_mode"] == "asp"


def test_batch_normalisation_by_the_whole_batch_is_refused_where_ranks_are_apart(alone: dict[str, Any]) -> None:
    assert "needs ranks that compute in lockstep" in alone["a_whole_batch_of_ranks_apart"]


def test_a_model_that_normalises_batches_is_copied_and_stored_as_ever(alone: dict[str, Any]) -> None:
    assert alone["a_model_that_normalises"] == [True, True, True]


def test_batches_of_tensors_are_those_of_a_data_loader(alone: dict[str, Any]) -> None:
    assert alone["a_batch_of_tensors_is_what_a_data_loader_gives"]
    assert alone["a_class_made_of_a_tensor_data_set_has_its_own_samples"]


def test_batches_that_are_loaded_ahead_give_the_same_training(alone: dict[str, Any]) -> None:
    assert alone["loaded_ahead_is_the_same"]


def test_a_training_that_was_stopped_in_an_epoch_ends_as_if_it_never_was(alone: dict[str, Any]) -> None:
    assert alone["goes_on_as_if_never_stopped"]


def test_a_gradient_scaler_changes_nothing_but_rounding(alone: dict[str, Any]) -> None:
    assert alone["a_scaler_changes_nothing"] < 1e-5


def test_checkpoints_that_cannot_be_read_are_passed_over_and_old_ones_deleted(alone: dict[str, Any]) -> None:
    assert alone["a_broken_checkpoint_is_passed_over"] == 7
    assert alone["only_the_last_are_kept"] == [12, 5]


def test_a_run_that_has_to_stop_saves_and_ends_with_0(alone: dict[str, Any]) -> None:
    assert alone["stopped_by_a_signal"] == [False, 0, True]
    assert alone["stopped_by_a_notice"] == ["preempted", True]


def test_the_network_predicts_a_rhythm_better_than_smoothing_and_always_the_same(alone: dict[str, Any]) -> None:
    network, smoothing, same = alone["a_network_sees_a_rhythm"]
    assert network < 0.6 * smoothing
    assert same
