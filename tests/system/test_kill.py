"""Kill -9 of each part while a container writes 2,000 numbered lines a second: nothing of the job is lost.

The judge is outside: the script writes the same lines to a file of its own, and we know what they must be.
"""

from collections.abc import Iterator

import pytest

from tests.system.docker_lab import docker_lab, engine
from tests.system.own_engine import OwnEngine
from tests.system.product import Product, wait_for

pytestmark = [pytest.mark.system, pytest.mark.thorough]

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


@pytest.fixture(scope="module")
def docker() -> Iterator[OwnEngine]:
    with engine() as own:
        yield own


@pytest.fixture(scope="module")
def lab(docker: OwnEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with docker_lab(docker, tmp_path_factory.mktemp("lab")) as product:
        yield product


@pytest.mark.parametrize("victim", ["web", "scheduler", "agent", "dockerd"])
def test_a_kill_loses_no_byte(lab: Product, docker: OwnEngine, victim: str) -> None:
    job = lab.submit(lab.upload(f"flood {victim}", flood=FLOOD), "python flood.py")
    lab.wait_for_job(job, "RUNNING", seconds=60)
    wait_for("the first lines are stored", lambda: len(lab.log(job)) > 10_000, 30)
    if victim == "dockerd":
        docker.kill()
        docker.start()
    else:
        lab.kill(victim)
        lab.start(victim)
    lab.succeeds(job)
    assert len(lab.get(f"jobs/{job}/attempts/")) == 1, "it was run again, so it was lost on the way"
    wait_for("the log is whole", lambda: len(lab.log(job)) >= len(EXPECTED), 30)
    assert lab.log(job) == EXPECTED
    witness = wait_for("the witness has arrived", lambda: lab.output_file(job, "witness.log"), 30)
    assert witness == EXPECTED
