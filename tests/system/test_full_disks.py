"""A disk of the portal, and one of a node, that fill up while a job runs: a warning, polite refusals, and nothing lost."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.plain_lab import PlainLab
from tests.system.product import running, wait_for

pytestmark = [pytest.mark.system, pytest.mark.thorough]
MIB = 1 << 20
DISK_MIB = 2200
FENCE_SECONDS = 34
COUNT = """
import os, pathlib, time

go, number = pathlib.Path(os.environ["SCHEDULEARN_CHECKPOINTS"]) / "go", 0
while not go.exists():
    print("line", number, flush=True)
    number += 1
    time.sleep(0.05)
(pathlib.Path(os.environ["SCHEDULEARN_OUTPUTS"]) / "last.txt").write_text(str(number))
print("end", number, flush=True)
"""


class SmallDisk:
    """A file system of its own in memory, of which a test takes what it does not leave free."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "small", str(folder)], check=True)

    def leave_free(self, mib: int) -> None:
        """Fill it but for so much; with more than is free, give back."""
        filler = self.folder / "filler"
        filler.unlink(missing_ok=True)
        found = os.statvfs(self.folder)
        size = found.f_bavail * found.f_frsize - mib * MIB
        if size > 0:
            with filler.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)

    def close(self) -> None:
        subprocess.run(["umount", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    small = SmallDisk(tmp_path / "small")
    yield small
    small.close()


def lines(log: bytes) -> list[str]:
    return log.decode().split("\n")


def is_exact(log: bytes, last: int) -> bool:
    """Whether the log has each line once and in order, up to its end."""
    return lines(log) == [*(f"line {number}" for number in range(last)), f"end {last}", ""]


def alarms(lab: PlainLab) -> list[str]:
    code = (
        "from portal.cluster.alarms import current_alarms; print(*(each.text for each in current_alarms()), sep='\\n')"
    )
    return lab.shell(code).splitlines()


def stays(what: Callable[[], Any], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert what()
        time.sleep(1)


def test_the_disk_of_the_portal(tmp_path: Path, disk: SmallDisk) -> None:
    lab = PlainLab.within(disk.folder, AGENT_HOME=str(tmp_path / "agent"))
    with running(lab):
        lab.start_all()
        lab.wait_for_nodes()
        code = lab.upload("count", count=COUNT)
        job = lab.submit(code, "python count.py")
        lab.wait_for_job(job, "RUNNING")
        wait_for("its log arrives", lambda: b"line 20\n" in lab.log(job), 60)
        assert not [text for text in alarms(lab) if "disk of the portal" in text]

        disk.leave_free(700)  # uploads are refused; what runs goes on
        assert any("The disk of the portal is full" in text for text in alarms(lab))
        refused = lab.api("POST", f"projects/{code['project']}/code/", files={"file": ("a.py", b"print(1)\n")})
        assert refused.status_code == 507 and "ask an admin to make room" in refused.json()["error"]["message"]
        seen = len(lab.log(job))
        wait_for("its log still arrives", lambda: len(lab.log(job)) > seen, 30)

        disk.leave_free(150)  # logs wait on the node, longer than a job lives without a lease
        time.sleep(1)
        kept = len(lab.log(job))
        stays(lambda: lab.job_state(job) == "RUNNING", FENCE_SECONDS + 10)
        assert len(lab.log(job)) == kept, "it waits on the node"

        disk.leave_free(0)  # another program has taken the rest: for less time than a lease
        answers = {lab.api("POST", "projects/", json={"name": f"p{number}"}).status_code for number in range(5)}
        assert answers <= {201, 503, 507}, answers
        assert lab.api("GET", f"jobs/{job}/").status_code in (200, 503, 507)
        time.sleep(5)
        disk.leave_free(DISK_MIB)

        (tmp_path / f"agent/jobs/{job}/checkpoints/go").touch()
        lab.succeeds(job)
        wait_for("its outputs arrive", lambda: lab.output_file(job, "last.txt"), 60)
        last = int(lab.output_file(job, "last.txt"))
        wait_for("its log is whole", lambda: is_exact(lab.log(job), last), 60)
        lab.upload("later", later="print(2)\n")
        assert (
            lab.shell(
                "from django.db import connection as c; cursor = c.cursor(); cursor.execute('PRAGMA integrity_check'); print(cursor.fetchall())"
            ).strip()
            == "[('ok',)]"
        )
        assert len(lab.get(f"jobs/{job}/attempts/")) == 1


def test_the_disk_of_a_node(tmp_path: Path, disk: SmallDisk) -> None:
    lab = PlainLab.within(tmp_path, AGENT_HOME=str(disk.folder / "agent"))
    with running(lab):
        lab.start_all()
        lab.wait_for_nodes()
        code = lab.upload("count", count=COUNT)
        job = lab.submit(code, "python count.py")
        lab.wait_for_job(job, "RUNNING")
        wait_for("its log arrives", lambda: b"line 20\n" in lab.log(job), 60)

        disk.leave_free(1500)  # less than 10 GiB from the start, so an alarm, but no hindrance
        assert any("is running out of disk space" in text for text in alarms(lab))
        disk.leave_free(60)
        wait_for("it is an alarm", lambda: any("accepts no jobs" in text for text in alarms(lab)), 30, every=2)
        second = lab.submit(code, "true")
        wait_for("it states why", lambda: "is full" in str(lab.get(f"jobs/{second}/")["waiting_reason"]), 30)
        assert lab.job_state(job) == "RUNNING" and lab.job_state(second) == "QUEUED"

        disk.leave_free(DISK_MIB)
        lab.succeeds(second)
        (disk.folder / f"agent/jobs/{job}/checkpoints/go").touch()
        lab.succeeds(job)
        wait_for("its outputs arrive", lambda: lab.output_file(job, "last.txt"), 60)
        last = int(lab.output_file(job, "last.txt"))
        wait_for("its log is whole", lambda: is_exact(lab.log(job), last), 60)
