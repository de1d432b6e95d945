"""A backup of the database is restored in a lab with jobs: none sees a file of another that had its number.

Agent and jobs go on meanwhile, as on machines of their own; jobs are processes, so that this needs no engine.
"""

import shutil
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.system.plain_lab import PlainLab
from tests.system.product import running, wait_for

pytestmark = [pytest.mark.system, pytest.mark.thorough]

STALL_SECONDS = 180
"""Until no job is RUNNING whose process has long ended: an agent reports what it does not have at once."""
SECRET = "SECRET-OF-ADA"
WRITER = f"""
import os, pathlib, sys, time

checkpoints, outputs = (pathlib.Path(os.environ[f"SCHEDULEARN_{{name}}"]) for name in ("CHECKPOINTS", "OUTPUTS"))
(checkpoints / "weights").write_text("{SECRET}")
(outputs / "model").write_text("{SECRET}")
print("{SECRET}", flush=True)
time.sleep(600 if "stay" in sys.argv else 0)
"""
READER = """
import os, pathlib

for name in ("CHECKPOINTS", "OUTPUTS", "WORKSPACE"):
    folder = pathlib.Path(os.environ[f"SCHEDULEARN_{name}"])
    print(name, sorted(path.name for path in folder.rglob("*")), flush=True)
"""
HOLDER = """
import os, pathlib, time

step = pathlib.Path(os.environ["SCHEDULEARN_CHECKPOINTS"]) / "step"
while not (step.parent / "end").exists():
    step.write_text("41")
    time.sleep(0.1)
print("ends with", step.read_text(), flush=True)
"""
SECOND = """
from portal.accounts.models import ApiToken, User
user = User.objects.create_user("bob", "bob@example.org", "correct horse battery staple")
print("TOKEN", ApiToken.issue(user, "system test")[1])
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[PlainLab]:
    product = PlainLab.within(tmp_path)
    with running(product):
        product.start_all()
        yield product


def backup(lab: PlainLab, to: Path) -> None:
    with sqlite3.connect(lab.home / "db.sqlite3") as database:
        database.execute("VACUUM INTO ?", [str(to)])


def restore(lab: PlainLab, backup: Path) -> None:
    for name in ("scheduler", "web"):
        lab.kill(name)
    for path in lab.home.glob("db.sqlite3*"):
        path.unlink()
    shutil.copy(backup, lab.home / "db.sqlite3")
    for name in ("web", "scheduler"):
        lab.start(name)
    wait_for("the web process answers", lab.answers)


def everything_of(lab: PlainLab, job: int) -> bytes:
    """What the portal has of a job."""
    paths = [f"jobs/{job}/", f"jobs/{job}/events/", f"jobs/{job}/outputs/", f"jobs/{job}/attempts/"]
    answers = [lab.api("GET", path).content for path in (*paths, f"jobs/{job}/checkpoints/", f"jobs/{job}/streams/")]
    return b"\n".join([*answers, lab.log(job), lab.output_file(job, "model")])


def running_jobs(lab: PlainLab) -> dict[int, int]:
    """Return the jobs that the portal lists as running, and how many processes each has."""
    rows = lab.get("jobs/?state=RUNNING")
    folder = lab.home / "agent/processes"
    return {row["id"]: len(list(folder.glob(f"sl-{row['id']}-*.json"))) for row in rows}


def let_end(lab: PlainLab, job: int) -> None:
    """Let a job that runs ``HOLDER`` end, by a file in a folder that it sees even if it is confined."""
    (lab.home / f"agent/jobs/{job}/checkpoints/end").touch()


def has_all(lab: PlainLab, job: int) -> bool:
    return b"WORKSPACE" in lab.log(job)


def test_no_job_sees_a_file_of_one_that_had_its_number(lab: PlainLab, tmp_path: Path) -> None:
    lab.wait_for_nodes()
    saved = tmp_path / "backup.sqlite3"
    code = lab.upload("ada", write=WRITER, hold=HOLDER)
    known, over = (lab.submit(code, "python hold.py") for _ in range(2))
    for job in (known, over):
        lab.wait_for_job(job, "RUNNING")
    ada, lab.token = lab.token, lab.shell(SECOND).split()[-1]
    bobs, bob = lab.upload("bob", read=READER), lab.token
    backup(lab, saved)

    lab.token = ada
    let_end(lab, over)
    lab.succeeds(over)
    finished = lab.submit(code, "python write.py")
    lab.succeeds(finished)
    wait_for("its output is here", lambda: lab.output_file(finished, "model") == SECRET.encode())
    stays = lab.submit(code, "python write.py stay")
    wait_for("it has written", lambda: SECRET.encode() in lab.log(stays), 60)

    restore(lab, saved)
    lab.token = bob
    again = [lab.submit(bobs, "python read.py") for _ in range(2)]
    assert again == [finished, stays], "the numbers are not those of the lost jobs"
    for job in again:
        lab.succeeds(job)
        wait_for("its log is whole", partial(has_all, lab, job))
        lines = lab.log(job).decode().splitlines()
        assert lines == ["CHECKPOINTS []", "OUTPUTS []", "WORKSPACE ['read.py']"]
        assert SECRET.encode() not in everything_of(lab, job)

    lab.token = ada
    # By the backup it runs, and its node has forgotten it.
    wait_for("the job that has ended is over again", lambda: lab.job_state(over) == "SUCCEEDED", STALL_SECONDS)
    outcomes = [attempt["outcome"] for attempt in lab.get(f"jobs/{over}/attempts/")]
    assert outcomes == ["lost", "succeeded"], outcomes
    assert lab.job_state(known) == "RUNNING"
    assert running_jobs(lab) == {known: 1}
    let_end(lab, known)
    lab.succeeds(known)
    assert len(lab.get(f"jobs/{known}/attempts/")) == 1, "the job that the backup knew was run again"
    wait_for("its log is whole", lambda: b"ends with 41" in lab.log(known))
    assert not list((lab.home / "agent/processes").glob(f"sl-{stays}-*.json")), "the lost job still runs"
    kept = {folder.name: folder for folder in (lab.home / "agent/jobs").glob("*.other-*")}
    assert {(folder / "checkpoints/weights").read_text() for folder in kept.values()} == {SECRET} and len(kept) == 2

    def problems() -> Any:
        return [problem["text"] for node in lab.get("nodes/") for problem in node["problems"]]

    wait_for("the node reports it", lambda: any(all(name in text for name in kept) for text in problems()))
