"""A chain of jobs as real processes: the second reads what the first left, also when the portal is killed in between."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.product import Product, running, wait_for
from tests.system.test_restore import Lab

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
def lab(tmp_path: Path) -> Iterator[Product]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    product = Lab.make(home, "process", SCHEDULEARN_UNSAFE_PROCESSES="yes", SCHEDULEARN_CPU_SLOTS="3")
    (home / "python").write_text(
        f'#!/bin/sh\n[ "$2" = runners.agent.program ] && exec {sys.executable} -m tests.runners.plain_agent\n'
        f'exec {sys.executable} "$@"\n'
    )
    (home / "python").chmod(0o700)
    with running(product):
        product.start_all()
        yield product


def test_a_child_reads_the_outputs_of_its_parent(lab: Product) -> None:
    wait_for("the node is ready", lambda: any(node["gpus"] for node in lab.get("nodes/")), 60)
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


def test_a_child_of_a_job_that_fails_is_cancelled(lab: Product) -> None:
    wait_for("the node is ready", lambda: any(node["gpus"] for node in lab.get("nodes/")), 60)
    code = lab.upload("chain", fail="raise SystemExit(3)")
    parent = lab.submit(code, "python fail.py")
    child = lab.submit(code, "true", after=parent, use_outputs=True)
    assert lab.wait_for_job(child, "CANCELLED", "SUCCEEDED") == "CANCELLED"
    texts = [event["text"] for event in lab.get(f"jobs/{child}/events/")]
    assert any(f"because job {parent}, after which it was to start, has failed" in text for text in texts)
