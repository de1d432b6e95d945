"""Each example of the gallery, run as a job would run it."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.runners.launching import Attempt, Container, attempt, last_accuracy, local_group

GALLERY = Path(__file__).resolve().parents[3] / "portal" / "projects" / "gallery"
KEYS = [
    "pytorch-digits", "horovod-static", "horovod-elastic", "torchrun-ddp", "five-lines", "chosen-batch", "own-pace",
    "keras-elastic", "failing",
]  # fmt: skip
PYTHONS = {"pytorch": "plain_python", "pytorch-horovod": "job_python", "tensorflow-horovod": "keras_python"}
"""Fixtures by environment."""
FIELDS = {
    "key": str,
    "order": int,
    "title": str,
    "description": str,
    "teaches": list,
    "launcher": str,
    "entry": str,
    "arguments": list,
    "elastic": bool,
    "resumable": bool,
    "min_gpus": int,
    "max_gpus": int,
    "time_limit_seconds": int,
    "environment": str,
    "env_vars": dict,
}


QUICK = frozenset({"horovod-elastic"})
"""Run by ``make test``; the others are variations that need the same parts."""


def quickly(keys: list[str]) -> list[Any]:
    """Parameters, of which ``make test`` takes those of ``QUICK`` only."""
    return [key if key in QUICK else pytest.param(key, marks=pytest.mark.thorough) for key in keys]


def about(key: str) -> dict[str, Any]:
    return tomllib.loads((GALLERY / key / "gallery.toml").read_text())


@pytest.fixture
def python(request: pytest.FixtureRequest, key: str) -> str:
    return str(request.getfixturevalue(PYTHONS[about(key)["environment"]]))


def run(made: Attempt, key: str) -> tuple[dict[str, Any], Container]:
    """The deciding container's exit, and the container of rank 0."""
    job = about(key)
    code = GALLERY / key / "train.py"
    ranks = job["max_gpus"]
    if job["launcher"] == "command":
        host = made.container((*shlex.split(job["entry"]), *job["arguments"]), code=code).start()
        return host.wait(150), host
    command = ("python", job["entry"], *job["arguments"])
    group, launcher = local_group(job["min_gpus"], ranks), job["launcher"]
    driver = made.container(command, launcher, "driver", "driver", 0, group, job["elastic"])
    hosts = [
        made.container(command, launcher, "host", f"h{number + 1}", 1, group, job["elastic"], code)
        for number in range(ranks)
    ]
    driver.tell(hosts=[(host.spec.hostname, 1) for host in hosts])
    for container in made.containers:
        container.start()
    return driver.wait(150), hosts[0]


@pytest.mark.parametrize("key", KEYS)
def test_each_example_states_what_a_job_needs(key: str) -> None:
    job = about(key)
    assert {name: type(value) for name, value in job.items()} == FIELDS
    assert job["key"] == key
    assert 1 <= job["min_gpus"] <= job["max_gpus"]
    assert job["elastic"] == (job["min_gpus"] < job["max_gpus"])
    assert job["launcher"] in {"command", "horovod", "torchrun"}
    assert shlex.split(job["entry"])[-1] == "train.py"


def test_the_gallery_is_complete_and_in_order() -> None:
    found = sorted((about(path.parent.name) for path in GALLERY.glob("*/gallery.toml")), key=lambda job: job["order"])
    assert [job["key"] for job in found] == KEYS


@pytest.mark.horovod
@pytest.mark.timeout(900)  # an environment may have to be made first, with a Horovod compiled for it
@pytest.mark.parametrize("key", quickly([key for key in KEYS if key != "failing"]))
def test_it_learns_to_read_digits(tmp_path: Path, python: str, key: str) -> None:
    with attempt(tmp_path, python) as made:
        exit, first = run(made, key)
        assert exit == {"code": 0, "reason": "exited", "detail": ""}, first.summary()
        assert last_accuracy(first.log()) >= 0.95
        assert first.log().endswith(f"accuracy: {last_accuracy(first.log()):.4f}\n")
        assert len(re.findall(r"^epoch \d+/20 .* accuracy 0\.\d{4}$", first.log(), re.MULTILINE)) == 20
        assert next(first.outputs.glob("model.*")).stat().st_size > 10_000
        assert (first.outputs / "metrics.csv").read_text().count("\n") == 20


@pytest.mark.horovod
@pytest.mark.timeout(900)  # an environment may have to be made first, with a Horovod compiled for it
@pytest.mark.parametrize("key", quickly([key for key in KEYS if key not in ("failing", "horovod-static")]))
@pytest.mark.thorough
def test_a_retry_goes_on_from_the_checkpoint(tmp_path: Path, python: str, key: str) -> None:
    with attempt(tmp_path, python) as made:
        run(made, key)
    with attempt(tmp_path, python) as again:
        (again.home / "sl-1-a1-0" / "scribe" / "exit.json").unlink()
        for path in again.home.glob("*/scribe/log/*"):
            path.unlink()
        exit, first = run(again, key)
        assert exit["code"] == 0
        assert "epoch 1/20" not in first.log()
        assert last_accuracy(first.log()) >= 0.95


@pytest.mark.horovod
def test_the_failing_example_fails_after_some_output(tmp_path: Path, job_python: str) -> None:
    with attempt(tmp_path, job_python) as made:
        exit, first = run(made, "failing")
    assert exit == {"code": 1, "reason": "exited", "detail": ""}
    assert first.log().startswith("step 1: all is well\n")
    assert first.log().endswith("ModuleNotFoundError: No module named 'a_module_that_does_not_exist'\n")
