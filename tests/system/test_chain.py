"""A chain of jobs as real processes: the second reads what the first left, also when the portal is killed in between."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.plain_lab import PlainLab
from tests.system.product import running, wait_for

pytestmark = [pytest.mark.system, pytest.mark.thorough]

PREPARE = """
import os, pathlib, time

outputs = pathlib.Path(os.environ["SCHEDULEARN_OUTPUTS"])
(outputs / "data").mkdir()
(outputs / "data" / "rows.txt").write_text("seven rows")
go = pathlib.Path(os.environ["SCHEDULEARN_CHECKPOINTS"]) / "go"
while not go.exists():
    time.sleep(0.1)
"""
FIT = """
import os, pathlib

inputs = pathlib.Path(os.environ["SCHEDULEARN_INPUTS"])
(pathlib.Path(os.environ["SCHEDULEARN_OUTPUTS"]) / "fit.txt").write_text((inputs / "data" / "rows.txt").read_text() + " fit")
try:
    (inputs / "data" / "rows.txt").open("a").close()
except OSError:
    print("read-only", flush=True)
print("end", flush=True)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[PlainLab]:
    product = PlainLab.within(tmp_path)
    with running(product):
        product.start_all()
        yield product


def test_a_child_reads_the_outputs_of_its_parent(lab: PlainLab) -> None:
    lab.wait_for_nodes()
    code = lab.upload("chain", prepare=PREPARE, fit=FIT)
    parent = lab.submit(code, "python prepare.py")
    child = lab.submit(code, "python fit.py", after=parent, use_outputs=True)
    grandchild = lab.submit(code, "true", after=child)
    lab.wait_for_job(parent, "RUNNING")
    wait_for("it states why", lambda: f"until job {parent}" in lab.get(f"jobs/{child}/")["waiting_reason"], 60)
    lab.kill("scheduler")
    (lab.home / f"agent/jobs/{parent}/checkpoints/go").touch()
    lab.succeeds(parent)
    assert lab.job_state(child) == "QUEUED"
    lab.start("scheduler")
    lab.succeeds(child)
    lab.succeeds(grandchild)
    wait_for("its outputs arrive", lambda: lab.output_file(child, "fit.txt") == b"seven rows fit", 60)
    assert lab.get(f"jobs/{child}/")["ready_at"]


def test_a_child_of_a_job_that_fails_is_cancelled(lab: PlainLab) -> None:
    lab.wait_for_nodes()
    code = lab.upload("chain", fail="raise SystemExit(3)")
    parent = lab.submit(code, "python fail.py")
    child = lab.submit(code, "true", after=parent, use_outputs=True)
    assert lab.wait_for_job(child, "CANCELLED", "SUCCEEDED") == "CANCELLED"
    texts = [event["text"] for event in lab.get(f"jobs/{child}/events/")]
    assert any(f"because job {parent}, after which it was to start, has failed" in text for text in texts)
