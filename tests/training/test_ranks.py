"""The library on real ranks: processes of a job environment, under torchrun and Horovod."""

import json
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests import engine
from tests.examples import HUNT

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(400)]

SCRIPTS = Path(__file__).parent / "scripts"
LAUNCHERS = {
    "torchrun": ["torchrun", "--nproc-per-node", "3"],
    "horovod": ["horovodrun", "--gloo", "--disable-cache", "-np", "3", "python"],
}


def finished(command: list[str], job_python: str, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """At most 300 seconds long. Then the launcher is asked to end, which ends its ranks; killed, it would leave them."""
    env = engine.rank_env(job_python)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=env, cwd=folder, **pipes) as launcher:
        try:
            out, err = launcher.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            launcher.terminate()
            out, err = launcher.communicate()
    return subprocess.CompletedProcess(command, launcher.returncode, out, err)


def run(command: list[str], job_python: str) -> dict[str, Any]:
    """What it printed last, as JSON."""
    done = finished(command, job_python)
    assert done.returncode == 0, done.stdout + done.stderr
    last = [line for line in done.stdout.splitlines() if "{" in line][-1]
    found: dict[str, Any] = json.loads(last[last.index("{") :])
    return found


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


def test_a_part_of_a_single_sample_says_nothing_to_batch_normalisation(split: dict[str, Any]) -> None:
    assert split["learnt"] == 0


def test_the_noise_of_gradients_is_measured_on_several_ranks_and_on_one(split: dict[str, Any]) -> None:
    """Each of them in one pass and in several."""
    assert len(split["noise"]) == 4
    for sqr, var in split["noise"]:
        assert sqr == pytest.approx(1.0, abs=0.25)
        assert var == pytest.approx(1.0, abs=0.25)


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


def test_a_loop_that_forgets_a_step_or_a_batch_is_told(alone: dict[str, Any]) -> None:
    assert "once for each batch" in alone["a_step_without_a_batch"]
    assert "each batch needs its step" in alone["a_batch_without_a_step"]


def test_a_loss_for_each_sample_is_refused_with_what_to_do(alone: dict[str, Any]) -> None:
    assert alone["a_loss_for_each_sample"].endswith('takes one number, not (8, 1): use reduction="sum", or loss.sum()')


def test_a_mode_that_is_none_is_told_with_those_that_are(alone: dict[str, Any]) -> None:
    assert alone["a_mode_that_is_none"].endswith(
        "bsp, bsp_balanced, ksync, adaptive_ksync, kasync, adaptive_kasync, asp"
    )


def test_the_mode_of_the_jobs_form_counts_more_than_that_of_its_code(alone: dict[str, Any]) -> None:
    assert alone["the_form_chooses_the_mode"] == "asp"


def test_batch_normalisation_by_the_whole_batch_is_refused_where_ranks_are_apart(alone: dict[str, Any]) -> None:
    assert "needs ranks that compute in step" in alone["a_whole_batch_of_ranks_apart"]


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


def test_a_run_that_is_told_to_go_saves_and_ends_well(alone: dict[str, Any]) -> None:
    assert alone["told_by_a_signal"] == [False, 0, True]
    assert alone["told_by_a_notice"] == ["preempted", True]


def test_the_network_predicts_a_rhythm_better_than_smoothing_and_always_the_same(alone: dict[str, Any]) -> None:
    network, smoothing, same = alone["a_network_sees_a_rhythm"]
    assert network < 0.6 * smoothing
    assert same


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
    """Tensors are cut through, but for an optimiser that nobody knows; what it has learnt is put together again."""
    found = served[optimiser]
    assert max(found["2 shards"], found["3 shards"]) < 1e-10  # gradients arrive in any order


@OPTIMISERS
def test_a_checkpoint_of_several_shards_is_gone_on_from_with_another_number(
    served: dict[str, Any], optimiser: str
) -> None:
    assert served[optimiser]["goes_on"] < 1e-6
    assert served[optimiser]["steps"] == [17, 16, 27, 27]


@pytest.mark.thorough
def test_a_shard_that_breaks_off_on_another_rank_ends_the_training_and_says_why(job_python: str) -> None:
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
def test_a_parameter_server_tells_how_long_a_whole_batch_takes_though_updates_have_less(
    served: dict[str, Any], mode: str
) -> None:
    assert served[mode]["time_told"] == pytest.approx(1.0, abs=0.25)


def test_equal_ranks_that_may_leave_some_out_are_in_step_and_need_no_server(served: dict[str, Any]) -> None:
    assert not served["equal"]["apart"]
    assert served["equal"]["off"] < 1e-12


def test_ranks_go_apart_when_one_is_slow_and_meet_again_when_it_is_not(served: dict[str, Any]) -> None:
    """With nothing lost or done twice, and the same everywhere, what the optimiser has learnt included."""
    found = served["meeting"]
    assert found["ways"][:3] == [False, True, False]
    assert found["used"] == 18
    assert found["apart"] == 0


def test_a_slow_worker_of_a_parameter_server_gets_less_to_do_and_the_others_what_fits(served: dict[str, Any]) -> None:
    parts = served["ksync"]["parts"]
    assert parts[2] < parts[0] <= 5 and sum(parts) == 12


def test_a_parameter_server_of_one_rank_is_an_ordinary_training(served: dict[str, Any]) -> None:
    assert served["alone"] == 3 * 9
