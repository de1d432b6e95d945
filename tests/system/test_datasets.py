"""A dataset is sent over REST, read by jobs on two nodes, fetched once by each, and where it is counts in placement.

``DATASET_MIB=2048`` makes it as large as it is in a lab; ordinary runs take less.
"""

import base64
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.system.plain_lab import PlainLab
from tests.system.product import JOIN_TOKEN, PORTAL_SECRETS, ROOT, running, wait_for

pytestmark = [pytest.mark.system, pytest.mark.thorough, pytest.mark.timeout(600)]

SIZE_MIB = int(os.environ.get("DATASET_MIB", "48"))
PIECE = 8 << 20
NODES = ("one", "two")
REPORTED = """
from portal.cluster.models import Node
print(*(len(node.facts.get("cached_datasets", ())) for node in Node.objects.all()))
"""
READS = """
import hashlib, os, pathlib, sys, time
top = pathlib.Path("../data")
digest = hashlib.sha256()
for path in sorted(path for path in top.rglob("*") if path.is_file()):
    digest.update(path.read_bytes())
print("read", digest.hexdigest(), len(os.listdir(top)), flush=True)
(top / "processed").write_text("written")
until = time.monotonic() + 120
while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]) and time.monotonic() < until:
    time.sleep(0.05)
"""


class Lab(PlainLab):
    """A lab with nodes of one CPU slot each, whose jobs are plain processes."""

    def start_node(self, name: str) -> None:
        token = re.search(r"JOIN (\S+)", self.shell(JOIN_TOKEN))
        assert token
        env = {key: value for key, value in self.env.items() if key not in PORTAL_SECRETS}
        env |= {"SCHEDULEARN_JOIN_TOKEN": token[1], "AGENT_HOME": str(self.home / name), "NODE_NAME": name}
        with (self.home / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.runners.plain_agent"],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def send(self, version: str, path: str, content: bytes) -> None:
        """Send a file as clients of tus do."""
        tus = {"Tus-Resumable": "1.0.0"}
        about = f"path {base64.b64encode(path.encode()).decode()}"
        made = self.api(
            "POST", f"{version}uploads/", headers={**tus, "Upload-Length": str(len(content)), "Upload-Metadata": about}
        )
        assert made.status_code == 201, made.text
        headers = {**tus, "Authorization": f"Bearer {self.token}", "Content-Type": "application/offset+octet-stream"}
        for offset in range(0, len(content), PIECE):
            sent = httpx.patch(
                f"{self.url}{made.headers['Location']}",
                content=content[offset : offset + PIECE],
                headers={**headers, "Upload-Offset": str(offset)},
                timeout=60,
                trust_env=False,
            )
            assert sent.status_code == 204, sent.text

    def finish(self, version: str) -> None:
        """Finish a version and check it, which takes turns with other periodic work otherwise."""
        self.post(f"{version}finish/")
        self.shell("from portal.storage import checking; checking.run_queued()")
        wait_for("the version is ready", lambda: self.get(version)["state"] == "ready", 60, every=0.2)

    def fetches(self, node: str) -> int:
        return self.output(node).count("The dataset digits (")

    def node_of(self, job: int) -> str:
        (attempt,) = self.get(f"jobs/{job}/attempts/")
        return str(attempt["containers"][0]["node"])


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab.within(tmp_path, SCHEDULEARN_CONFINE="no", SCHEDULEARN_CPU_SLOTS="1")
    with running(lab):
        lab.start_portal()
        for name in NODES:
            lab.start_node(name)
        wait_for("the nodes are ready", lambda: sum(len(node["gpus"]) for node in lab.get("nodes/")) == 2, 60)
        yield lab


def test_two_nodes_fetch_a_dataset_once_each_and_later_jobs_find_it(lab: Lab, tmp_path: Path) -> None:
    files = {f"raw/part-{number}": os.urandom(SIZE_MIB << 18) for number in range(4)}
    files |= {f"small/{number:03}": b"%d" % number for number in range(30)}
    dataset = lab.post("datasets/", json={"name": "digits"})["id"]
    number = lab.post(f"datasets/{dataset}/versions/", json={})["number"]
    version = f"datasets/{dataset}/versions/{number}/"
    for path, content in files.items():
        lab.send(version, path, content)
    digest = hashlib.sha256(b"".join(files[path] for path in sorted(files))).hexdigest()
    lab.finish(version)

    code = lab.upload("reads", reads=READS)
    asked: dict[str, Any] = {"datasets": [{"dataset": "ada/digits", "path": "../data", "writable": True}]}
    go = tmp_path / "go"
    jobs = [lab.submit(code, f"python reads.py {go}", **asked) for _ in NODES]
    line = f"read {digest} 2\n".encode()
    for job in jobs:
        wait_for(f"job {job} has read it", lambda job=job: line in lab.log(job), 300)  # type: ignore[misc]
    assert {lab.node_of(job) for job in jobs} == set(NODES), "both nodes run one"
    go.touch()
    for job in jobs:
        lab.succeeds(job)
    assert [lab.fetches(node) for node in NODES] == [1, 1]
    wait_for("the nodes have reported it", lambda: lab.shell(REPORTED).split() == ["1", "1"], 60, every=1.0)
    again = lab.submit(code, "python reads.py", **asked)
    lab.succeeds(again)
    assert line in lab.log(again), "what the job before wrote to its copy is gone"
    assert [lab.fetches(node) for node in NODES] == [1, 1], "it was there already"
    history = [event["text"] for event in lab.get(f"jobs/{again}/events/")]
    assert any("its datasets already" in text for text in history), history
    for node in NODES:
        wait_for("copies are gone", lambda node=node: not list((lab.home / node).glob("containers/*/copies")), 30)  # type: ignore[misc]


def test_an_archived_dataset_ends_the_start_with_the_reason(lab: Lab) -> None:
    dataset = lab.post("datasets/", json={"name": "digits"})["id"]
    lab.post(f"datasets/{dataset}/versions/", json={})
    version = f"datasets/{dataset}/versions/1/"
    lab.send(version, "raw/x", b"1")
    lab.finish(version)
    code = lab.upload("reads", reads=READS)
    for node in NODES:
        lab.kill(node)
    job = lab.submit(code, "python reads.py", datasets=[{"dataset": dataset, "path": "../data", "writable": True}])
    assert lab.api("DELETE", f"datasets/{dataset}/").status_code == 204
    for node in NODES:
        lab.start_node(node)
    lab.wait_for_job(job, "FAILED", seconds=240)
    assert "was archived" in lab.why(job)
