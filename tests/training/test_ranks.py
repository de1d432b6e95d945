"""The library on real ranks: processes of a job environment, under torchrun and Horovod."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
LAUNCHERS = {
    "torchrun": ["torchrun", "--nproc-per-node", "3"],
    "horovod": ["horovodrun", "--gloo", "--disable-cache", "-np", "3", "python"],
}


def run(command: list[str], job_python: str) -> dict[str, Any]:
    """What it printed last, as JSON."""
    env = {
        "PATH": f"{Path(job_python).parent}:{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", "/tmp"),
        "PYTHONPATH": str(ROOT / "runners" / "training"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    last = [line for line in done.stdout.splitlines() if "{" in line][-1]
    found: dict[str, Any] = json.loads(last[last.index("{") :])
    return found


@pytest.mark.parametrize("launcher", ["torchrun", "horovod"])
def test_any_split_of_a_batch_gives_the_update_of_one_process(job_python: str, launcher: str) -> None:
    found = run([*LAUNCHERS[launcher], str(SCRIPTS / "splits.py")], job_python)
    assert found["ranks"] == 3
    assert found["worst"] < 1e-6


@pytest.fixture(scope="module")
def alone(job_python: str) -> dict[str, Any]:
    return run([job_python, str(SCRIPTS / "alone.py")], job_python)


def test_a_loop_that_forgets_a_step_or_a_batch_is_told(alone: dict[str, Any]) -> None:
    assert "once for each batch" in alone["a_step_without_a_batch"]
    assert "each batch needs its step" in alone["a_batch_without_a_step"]


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
