"""Trainings with the library in real containers: resized within an epoch, stopped and resumed, given another batch, unequal.

The judge of samples is the model itself (``tests/training/scripts/counting.py``).
"""

import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import engine, servers
from tests.system.product import Product, running, wait_for

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS, GALLERY = ROOT / "tests" / "training" / "scripts", ROOT / "portal" / "projects" / "gallery"
ENVIRONMENT = "pytorch-horovod"
EXACT = b"0 of 480 samples were not used"
START_SECONDS = 120
PREPARE_SECONDS = 800
"""For an image with a Horovod that may have to be compiled."""


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """A lab with one machine of two slots."""
    with engine.docker_engine(), servers.postgres() as database, servers.redis() as broker:
        product = Product.make(
            tmp_path_factory.mktemp("lab"),
            "docker",
            DATABASE_URL=database,
            REDIS_URL=broker,
            SECRET_KEY="only-for-tests-and-longer-than-thirty-two-characters",
            SCHEDULEARN_BASE_IMAGE=engine.base_image(),
        )
        with running(product):
            product.start_all()
            product.wait_for_environment(ENVIRONMENT)
            yield product


def policy(it: Product, name: str, **params: Any) -> None:
    answer = it.api("PUT", "policy/", json={"policy": name, "params": params})
    assert answer.status_code == 200, answer.text


def train(it: Product, script: str, *arguments: str, launcher: str, **spec: Any) -> int:
    code = it.upload(f"{script} {time.monotonic()}", **{script: (SCRIPTS / f"{script}.py").read_text()})
    entry = f"python {script}.py" if launcher == "command" else f"{script}.py"
    return it.submit(code, entry, arguments=arguments, launcher=launcher, environment=ENVIRONMENT, **spec)


def sees(it: Product, job: int, words: bytes, times: int = 1) -> None:
    wait_for(f"{words!r} in the log", lambda: it.log(job).count(words) >= times, START_SECONDS)


def test_each_sample_counts_once_while_a_job_grows_and_shrinks_within_an_epoch(it: Product) -> None:
    policy(it, "elastic_fifo", grow_after_seconds=0)
    filler = it.upload("filler", nothing="")
    first = it.submit(filler, "sleep 600", environment=ENVIRONMENT)
    it.wait_for_job(first, "RUNNING", seconds=START_SECONDS)
    job = train(it, "counting", "6", "0.1", launcher="horovod", max_gpus=2, elastic=True)
    sees(it, job, b"of 1 ranks", 3)
    it.post(f"jobs/{first}/cancel/")
    sees(it, job, b"of 2 ranks", 3)
    alone = it.log(job).count(b"of 1 ranks")
    second = it.submit(filler, "sleep 600", environment=ENVIRONMENT)
    sees(it, job, b"of 1 ranks", alone + 3)
    it.post(f"jobs/{second}/cancel/")
    it.succeeds(job, seconds=START_SECONDS)
    wait_for("its last line", lambda: EXACT in it.log(job), 30)
    progress = it.get(f"jobs/{job}/progress/")
    assert progress["step"] == 240 and progress["done"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("launcher", "mode"), [("torchrun", "bsp"), pytest.param("torchrun", "asp", marks=pytest.mark.thorough)]
)
def test_a_job_that_is_stopped_goes_on_from_its_checkpoint(it: Product, launcher: str, mode: str) -> None:
    """In the second attempt nothing is computed that counted in the first."""
    policy(it, "fifo")
    job = train(it, "counting", "4", "0.1", mode, launcher=launcher, min_gpus=2, max_gpus=2, resumable=True)
    sees(it, job, b"of 2 ranks", 20)
    it.post(f"jobs/{job}/hold/")
    it.wait_for_job(job, "HELD", seconds=60)
    it.post(f"jobs/{job}/release/")
    it.succeeds(job, seconds=2 * START_SECONDS)
    wait_for("its last line", lambda: EXACT in all_of(it, job), 30)
    assert b"Resumed from step" in all_of(it, job)


def all_of(it: Product, job: int) -> bytes:
    """The logs of all attempts."""
    return b"".join(
        it.api("GET", f"jobs/{job}/log/", params={"attempt": each["number"]}).content
        for each in it.get(f"jobs/{job}/attempts/")
    )


@pytest.mark.thorough
def test_ffdl_orders_another_batch_and_the_training_takes_it(it: Product) -> None:
    """Its steps hardly take longer with more samples, and its gradients are noisy: a larger batch is worth it."""
    policy(it, "ffdl", period_seconds=10)
    job = train(it, "noisy", launcher="command")
    try:
        line = wait_for("another batch", lambda: re.search(rb"batch (\d+) at step \d+ (\d+) samples", it.log(job)), 90)
        assert line[1] == line[2] and 16 < int(line[1]) <= 256
        wait_for("the page knows", lambda: it.get(f"jobs/{job}/progress/")["batch"] == int(line[1]), 30)
    finally:
        it.post(f"jobs/{job}/cancel/")


@pytest.mark.thorough
def test_adaptive_k_sync_leaves_most_samples_to_the_rank_that_is_not_throttled(it: Product) -> None:
    """That is why it ends before BSP, where ranks compute equally many; ``make bench-training`` measures the gain."""
    policy(it, "fifo")
    for mode, least, most in (("bsp", 0.5, 0.5), ("adaptive_ksync", 0.0, 0.35)):
        job = train(it, "throttled", mode, launcher="torchrun", min_gpus=2, max_gpus=2)
        it.succeeds(job, seconds=2 * START_SECONDS)
        fast, slow = (wait_for("its last line", partial(last_line, it, job, f"rank {rank}"), 30) for rank in (0, 1))
        assert least <= int(slow[1]) / (int(fast[1]) + int(slow[1])) <= most, mode
        assert float(fast[2]) < 0.02, mode


def last_line(it: Product, job: int, label: str) -> re.Match[bytes] | None:
    return re.search(rb"computed (\d+) samples, loss ([\d.e-]+)", it.log(job, label))


@pytest.mark.thorough
def test_a_keras_job_waits_for_its_environment_and_learns_on_two_ranks(it: Product) -> None:
    """The gallery's, in containers, its environment prepared because it asks for it."""
    policy(it, "fifo")
    code = it.upload("keras", train=(GALLERY / "keras-elastic" / "train.py").read_text())
    spec = {"launcher": "horovod", "elastic": True, "max_gpus": 2, "environment": "tensorflow-horovod"}
    job = it.submit(code, "train.py", arguments=["--epochs", "15"], **spec)
    wait_for("why it waits", lambda: "TensorFlow" in it.get(f"jobs/{job}/")["waiting_reason"], 30)
    it.succeeds(job, seconds=PREPARE_SECONDS)
    found = wait_for("its last line", lambda: re.search(rb"accuracy: ([\d.]+)", it.log(job)), 30)
    assert float(found[1]) > 0.9
    assert b"I am rank 0 of 2" in it.log(job) and b"I am rank 1 of 2" in it.log(job, "rank 1")
    curves = {each["name"] for each in it.get(f"jobs/{job}/metrics/")}
    assert {"train/loss", "validation/accuracy"} <= curves
