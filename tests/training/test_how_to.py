"""The scripts in the pages for users are run as they are written."""

import re
import shutil
from pathlib import Path

import pytest

from tests.training.real_ranks import LAUNCHERS, finished

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(600)]  # several trainings, each with its own limit


def scripts(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def run(script: str, folder: Path, job_python: str, launcher: str = "") -> str:
    """Run a script in a folder, and return what it printed."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script)
    command = [*LAUNCHERS[launcher], "train.py"] if launcher else [job_python, "train.py"]
    done = finished(["2" if word == "3" else word for word in command], job_python, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_loop_resumes_from_its_own_checkpoint_or_from_one_in_the_upload(tmp_path: Path, job_python: str) -> None:
    (script,) = scripts("how-to/resume-pytorch.md")
    assert script.count("EPOCHS = 50") == 1
    first, second = tmp_path / "first", tmp_path / "second"
    assert "Resuming" not in run(script.replace("EPOCHS = 50", "EPOCHS = 2"), first, job_python)
    second.mkdir()
    shutil.copy(first / "checkpoints" / "latest.pt", second)
    printed = run(script.replace("EPOCHS = 50", "EPOCHS = 4"), second, job_python)
    assert f"Resuming after epoch 2 from {second}/latest.pt" in printed and "epoch 3/4" in printed
    printed = run(script.replace("EPOCHS = 50", "EPOCHS = 5"), second, job_python)
    assert "Resuming after epoch 4 from checkpoints/latest.pt" in printed and "epoch 4/5" not in printed


@pytest.mark.thorough
def test_the_library_resumes_from_a_checkpoint_in_the_upload(tmp_path: Path, job_python: str) -> None:
    copying, *_ = scripts("training/checkpoints.md")
    _, training, _ = scripts("how-to/two-gpus.md")
    first, second = tmp_path / "first", tmp_path / "second"
    run(training.replace("run.epochs(10)", "run.epochs(2)"), first, job_python)
    second.mkdir()
    for file in (first / "checkpoints").iterdir():
        shutil.copy(file, second)
    printed = run(copying + training.replace("run.epochs(10)", "run.epochs(3)"), second, job_python, "torchrun")
    assert "Resumed from step" in printed and "epoch 3 loss" in printed and "epoch 2 loss" not in printed


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "launcher"), [(0, ""), (1, "torchrun"), (1, "horovod"), (2, "torchrun")])
def test_the_loops_for_one_and_two_gpus_work(tmp_path: Path, job_python: str, number: int, launcher: str) -> None:
    script = scripts("how-to/two-gpus.md")[number]
    printed = run(script, tmp_path / "code", job_python, launcher)
    assert ("epoch 10 loss" if number == 0 else "on 2 ranks") in printed
    assert (tmp_path / "code" / "model.pt").is_file()
