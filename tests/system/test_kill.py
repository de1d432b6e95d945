"""Kill -9 of each part while a container writes 2,000 numbered lines a second: nothing of the job is lost.

The judge is outside: the script writes the same lines to a file of its own, and we know what they must be.
"""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import engine, servers
from tests.system.product import Product, running, wait_for

pytestmark = pytest.mark.system

LINES_PER_SECOND = 2_000
SECONDS = 15
FLOOD = f"""
import os, time

witness = open(os.path.join(os.environ["SCHEDULEARN_OUTPUTS"], "witness.log"), "w")
started = time.monotonic()
for burst in range({SECONDS} * 20):
    lines = "".join(f"line {{burst * {LINES_PER_SECOND // 20} + i:08d}}\\n" for i in range({LINES_PER_SECOND // 20}))
    print(lines, end="", flush=True)
    witness.write(lines)
    time.sleep(max(0, started + (burst + 1) / 20 - time.monotonic()))
witness.close()
"""
EXPECTED = "".join(f"line {number:08d}\n" for number in range(LINES_PER_SECOND * SECONDS)).encode()


def archive(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        for name, text in files.items():
            zipped.writestr(f"{name}.py", text)
    return buffer.getvalue()


def submit_flood(product: Product) -> int:
    project = product.post("projects/", json={"name": "flood"})["id"]
    code = product.post(f"projects/{project}/code/", files={"files": ("flood.zip", archive(flood=FLOOD))})["id"]
    spec = {
        "code": code,
        "entry": "python flood.py",
        "launcher": "command",
        "environment": "python",
        "min_gpus": 1,
        "max_gpus": 1,
        "time_limit_seconds": 600,
    }
    return int(product.post("jobs/", json=spec)["id"])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with engine.job_engine() as host, servers.postgres() as database, servers.redis() as broker:
        product = Product.make(
            tmp_path_factory.mktemp("lab"),
            "docker",
            DATABASE_URL=database,
            REDIS_URL=broker,
            SECRET_KEY="only-for-tests-and-longer-than-thirty-two-characters",
            DOCKER_HOST=host.url,
            SCHEDULEARN_BASE_IMAGE=host.base_image,
        )
        with running(product):
            product.engine = host  # type: ignore[attr-defined]
            product.start_all()
            product.wait_for_environment("python")
            yield product


@pytest.mark.parametrize("victim", ["web", "scheduler", "agent", "dockerd"])
def test_a_kill_loses_no_byte(lab: Product, victim: str, tmp_path: Path) -> None:
    job = submit_flood(lab)
    lab.wait_for_job(job, "RUNNING", seconds=60)
    wait_for("the first lines are stored", lambda: len(stored_log(lab, job)) > 10_000, 30)
    if victim == "dockerd":
        lab.engine.kill()  # type: ignore[attr-defined]
        lab.engine.start()  # type: ignore[attr-defined]
    else:
        lab.kill(victim)
        lab.start(victim)
    lab.wait_for_job(job, "SUCCEEDED", "FAILED", "CANCELLED", seconds=120)
    assert lab.job_state(job) == "SUCCEEDED"
    assert len(lab.get(f"jobs/{job}/attempts/")["results"]) == 1, "it was run again, so it was lost on the way"
    wait_for("the log is whole", lambda: len(stored_log(lab, job)) >= len(EXPECTED), 30)
    assert stored_log(lab, job) == EXPECTED
    witness = wait_for("the witness has arrived", lambda: output(lab, job, "witness.log"), 30)
    assert witness == EXPECTED


def stored_log(lab: Product, job: int) -> bytes:
    answer = lab.api("GET", f"jobs/{job}/log/", params={"stream": "0"})
    return answer.content if answer.status_code in (200, 206) else b""


def output(lab: Product, job: int, path: str) -> bytes:
    answer = lab.api("GET", f"jobs/{job}/outputs/{path}")
    return answer.content if answer.status_code == 200 else b""
