"""The library's Keras part on real ranks: equal weights, reports, a stop, and going on."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import engine
from tests.runners.launching import ElasticJob, attempt, until

pytestmark = [pytest.mark.horovod, pytest.mark.thorough, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parent / "scripts" / "keras_digits.py"
STEPS = 8
"""Of an epoch on two ranks."""


def started(python: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    env = {
        **engine.rank_env(python),
        "SCHEDULEARN_CHECKPOINTS": str(folder / "checkpoints"),
        "SCHEDULEARN_METRICS": str(folder / "reports"),
        "SCHEDULEARN_NOTICE": str(folder / "notice.json"),
    }
    command = ["horovodrun", "--gloo", "-np", "2", "python", str(SCRIPT), *arguments]
    (folder / "reports").touch()
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        output, _ = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output


def result(output: str) -> dict[str, Any]:
    line = [line for line in output.splitlines() if '"rank"' in line][-1]
    found: dict[str, Any] = json.loads(line[line.index("{") :])
    return found


def test_ranks_stay_equal_and_report_progress(keras_python: str, tmp_path: Path) -> None:
    code, output = ended(started(keras_python, tmp_path, "3"))
    assert code == 0, output
    found = result(output)
    assert (found["ranks"], found["began_in"], found["steps"]) == (2, 0, 3 * STEPS)
    assert found["weights"][0] == pytest.approx(found["weights"][1], abs=1e-6)
    assert found["losses"][-1] < found["losses"][0]
    reported = [json.loads(line) for line in (tmp_path / "reports").read_text().splitlines()]
    curves = {line["name"] for line in reported if line["kind"] == "metric"}
    assert curves == {"train/loss", "train/accuracy", "validation/loss", "validation/accuracy"}
    assert [line["done"] for line in reported if line["kind"] == "step"][-1] == pytest.approx(1.0)
    last = [line for line in reported if line["kind"] == "metric" and line["name"] == "train/loss"][-1]
    assert (last["step"], last["value"]) == (3 * STEPS, pytest.approx(found["losses"][-1], rel=1e-4))


def test_a_stopped_training_saves_and_resumes_in_the_same_epoch(keras_python: str, tmp_path: Path) -> None:
    first = started(keras_python, tmp_path, "4", "0.3")
    assert first.stdout is not None
    before = ""
    for line in first.stdout:
        before += line
        if "in epoch 2 of 4" in line:
            (tmp_path / "notice.json").write_text(json.dumps({"reason": "preempted", "until": 4_000_000_000}))
            break
    code, rest = ended(first)
    assert code == 0, before + rest
    assert "in epoch 4 of 4" not in rest
    kept = sorted((tmp_path / "checkpoints").iterdir())
    steps = int(kept[-1].stem.removeprefix("step-"))
    assert STEPS < steps < 3 * STEPS and kept[-1].suffix == ".npz"
    reported = [json.loads(line) for line in (tmp_path / "reports").read_text().splitlines() if '"step"' in line]
    assert any(line["kind"] == "step" and line["ranks"] == 2 and line["batch"] == 32 for line in reported)

    (tmp_path / "notice.json").unlink()
    code, output = ended(started(keras_python, tmp_path, "4"))
    assert code == 0, output
    found = result(output)
    began = found["began_in"]
    assert began in (1, 2) and f"Resumed from step {steps}, in epoch {began + 1}" in output
    assert found["steps"] == found["optimizer_steps"] == steps + (4 - began) * STEPS


def test_a_training_stopped_at_the_end_of_an_epoch_still_reports_it(keras_python: str, tmp_path: Path) -> None:
    code, output = ended(started(keras_python, tmp_path, "3", "0.2", "2"))
    assert code == 0 and "in epoch 3 of 3" not in output, output
    reported = [json.loads(line) for line in (tmp_path / "reports").read_text().splitlines()]
    assert [line["step"] for line in reported if line.get("name") == "validation/loss"] == [STEPS, 2 * STEPS]
    (tmp_path / "notice.json").unlink()
    code, output = ended(started(keras_python, tmp_path, "3"))
    assert code == 0 and f"Resumed from step {2 * STEPS}, in epoch 3" in output, output


def test_a_rank_group_grows_and_shrinks_while_it_trains(keras_python: str, tmp_path: Path) -> None:
    with attempt(tmp_path, keras_python) as made:
        elastic = ElasticJob(made, command=("python", "train.py", "20", "0.05"), code=SCRIPT, max_ranks=2)
        elastic.offer("h1")
        elastic.driver.start()
        h1 = elastic.host(1)
        elastic.sees(h1, "in epoch 2 of 20 on 1 ranks")
        h2 = elastic.host(2)
        until(lambda: "Waiting" in h2.log("setup"))
        elastic.offer("h1", "h2")
        elastic.sees(h1, "on 2 ranks")
        two = len(h1.log())
        elastic.offer("h1")
        h2.tell(stop={"reason": "preempted", "grace_seconds": 20})
        elastic.sees(h1, "on 1 ranks", two)
        assert h2.wait(30)["reason"] == "stopped"
        assert elastic.driver.wait(180) == {"code": 0, "reason": "exited", "detail": ""}
        found = result(h1.log())
    assert (found["ranks"], found["began_in"]) == (1, 0)
    epochs = [int(number) for number in re.findall(r"in epoch (\d+) of 20", h1.log())]
    assert epochs == sorted(epochs) and set(epochs) == set(range(1, 21))
    assert found["optimizer_steps"] == found["steps"]
