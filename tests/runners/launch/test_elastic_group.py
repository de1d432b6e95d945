"""Elastic groups with real Horovod: supervisors and driver as the process runtime runs them."""

import base64
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.launch.forwarder import send_request
from tests.runners.launching import GROUP_SECONDS, WAIT_FOR_RELEASE, ElasticJob, attempt, free_port, local_group, until

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(400)]


@pytest.fixture
def elastic(tmp_path: Path, job_python: str) -> Iterator[ElasticJob]:
    with attempt(tmp_path, job_python) as made:
        yield ElasticJob(made)


def test_a_group_grows_and_shrinks_while_it_counts_on(elastic: ElasticJob) -> None:
    elastic.offer("h1")
    elastic.driver.start()
    h1 = elastic.host(1)
    elastic.sees(h1, "step 5 of 1 ranks")
    h2 = elastic.host(2)
    until(lambda: "Waiting" in h2.log("setup"))
    elastic.offer("h1", "h2")
    elastic.sees(h1, "of 2 ranks")
    two = len(h1.log())
    elastic.offer("h1")
    h2.tell(stop={"reason": "preempted", "grace_seconds": 20})
    assert h2.wait(20)["reason"] == "stopped"
    elastic.sees(h1, "of 1 ranks", two)
    elastic.enough()
    assert elastic.driver.wait() == {"code": 0, "reason": "exited", "detail": ""}
    assert h1.wait()["code"] == 0
    steps = [int(step) for step in re.findall(r"^step (\d+) of", h1.log(), re.MULTILINE)]
    assert steps == list(range(1, steps[-1] + 1))  # not one step twice, none left out
    assert "has left the job" in h2.log("setup")
    assert "h2 leaves the job" in elastic.driver.log("setup")
    assert len(re.findall(r"^size", h2.log(), re.MULTILINE)) == 1


@pytest.mark.thorough
def test_ranks_that_load_before_their_driver_is_up_form_its_group(elastic: ElasticJob) -> None:
    elastic.offer("h1", "h2")
    h1, h2 = elastic.host(1), elastic.host(2)
    until(lambda: "Starting rank 0" in h1.log("setup") and "Starting rank 1" in h2.log("setup"))
    elastic.driver.start()
    elastic.sees(h1, "step 5 of 2 ranks")
    elastic.enough()
    assert elastic.driver.wait() == {"code": 0, "reason": "exited", "detail": ""}
    assert (h1.wait()["code"], h2.wait()["code"]) == (0, 0)
    assert [len(re.findall(r"^size", host.log(), re.MULTILINE)) for host in (h1, h2)] == [1, 1]
    assert (h1.labels()["0"], h2.labels()["0"]) == ("rank 0", "rank 1")


SLOW_TO_COME = f"""
import os, time
import horovod.torch as hvd
import torch

if os.environ["HOROVOD_HOSTNAME"] == "h2":
    print("loading", flush=True)
    exec({WAIT_FOR_RELEASE!r})
hvd.init()


@hvd.elastic.run
def count(state):
    while True:
        time.sleep(0.1)
        ranks = int(hvd.allreduce(torch.ones(1), name="ranks", op=hvd.Sum).item())
        state.step += 1
        print("step", state.step, "of", ranks, "ranks", flush=True)
        if ranks == 2 and state.step % 10 == 0:
            return
        state.commit()


count(hvd.elastic.TorchState(step=0))
"""


def test_a_group_trains_on_while_a_new_rank_gets_ready(elastic: ElasticJob, tmp_path: Path) -> None:
    """However long it loads: the others wait for it only when it is ready."""
    code = tmp_path / "slow.py"
    code.write_text(SLOW_TO_COME)
    elastic.offer("h1")
    elastic.driver.start()
    h1 = elastic.host(1, code)
    elastic.sees(h1, "step 5 of 1 ranks")
    h2 = elastic.host(2, code)
    elastic.offer("h1", "h2")
    elastic.sees(h2, "loading")
    done = h1.log().count("of 1 ranks")
    elastic.sees(h1, f"step {done + 20} of 1 ranks")
    elastic.made.release()
    assert elastic.driver.wait(GROUP_SECONDS)["code"] == 0
    steps = re.findall(r"^step (\d+) of (\d) ranks", h1.log(), re.MULTILINE)
    assert [int(step) for step, _ in steps] == list(range(1, len(steps) + 1))
    assert steps[-1][1] == "2"
    assert h2.labels()["0"] == "rank 1"


@pytest.mark.thorough
def test_a_new_rank_that_fails_before_it_comes_disturbs_no_other_rank(elastic: ElasticJob, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(9)")
    elastic.offer("h1")
    elastic.driver.start()
    h1 = elastic.host(1)
    elastic.sees(h1, "step 5 of 1 ranks")
    h2 = elastic.host(2, broken)
    elastic.offer("h1", "h2")
    assert h2.wait(GROUP_SECONDS)["reason"] == "stopped"
    assert "h2 leaves the job" in elastic.driver.log("setup")
    after = len(h1.log())
    elastic.sees(h1, "of 1 ranks", after)
    elastic.enough()
    assert elastic.driver.wait()["code"] == 0
    assert len(re.findall(r"^size", h1.log(), re.MULTILINE)) == 1


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.thorough)], ids=["rank 0", "rank 1"])
def test_the_group_survives_a_killed_rank(elastic: ElasticJob, victim: int) -> None:
    elastic.offer("h1", "h2")
    elastic.driver.start()
    hosts = [elastic.host(1), elastic.host(2)]
    elastic.sees(hosts[0], "step 5 of 2 ranks")
    killed, survivor = hosts[victim], hosts[1 - victim]
    pid = re.findall(r"rank \d+ step \d+ pid (\d+)", killed.log())[-1]
    os.kill(int(pid), 9)
    elastic.sees(survivor, "of 1 ranks")
    elastic.enough()
    assert elastic.driver.wait()["code"] == 0
    assert survivor.wait()["code"] == 0
    assert killed.wait()["reason"] == "stopped"  # its GPU is free before the attempt ends
    assert "ended with exit code 137" in elastic.driver.log("setup")


@pytest.mark.thorough
def test_when_every_rank_fails_the_attempt_fails(tmp_path: Path, job_python: str) -> None:
    with attempt(tmp_path, job_python) as made:
        group = local_group(1, 2)
        command = ("python", "-c", "import horovod.torch as hvd; hvd.init(); raise SystemExit(5)")
        driver = made.container(command, "horovod", "driver", "driver", 0, group, elastic=True)
        for number in (1, 2):
            made.container(command, "horovod", "host", f"h{number}", 1, group, elastic=True)
        driver.tell(hosts=[("h1", 1), ("h2", 1)])
        for container in made.containers:
            container.start()
        exit = driver.wait(GROUP_SECONDS)
        assert (exit["code"], exit["reason"]) == (5, "exited")


def test_cancelling_ends_an_elastic_group_at_once(elastic: ElasticJob) -> None:
    elastic.offer("h1")
    elastic.driver.start()
    h1 = elastic.host(1)
    elastic.sees(h1, "step 2 of 1 ranks")
    stop = {"reason": "cancelled", "grace_seconds": 60}
    elastic.driver.tell(stop=stop, hosts=[("h1", 1)])
    h1.tell(stop=stop)
    assert h1.wait(30)["reason"] == "stopped"
    assert elastic.driver.wait(30)["reason"] == "stopped"


# The exploit, against the real thing

PAYLOAD = """
import base64, os, sys, cloudpickle
class Payload:
    def __reduce__(self):
        return os.system, ("touch " + sys.argv[1],)
sys.stdout.write(base64.b64encode(cloudpickle.dumps(({"lo": [("127.0.0.1", 1)]}, Payload()))).decode())
"""
HOROVODS_OWN = """
import sys, time
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.http.http_server import RendezvousHTTPServer
class Driver:
    def register_worker_server(self, *_): pass
RendezvousHTTPServer(("127.0.0.1", int(sys.argv[1])), create_rendezvous_handler(Driver()), 0).serve_forever()
"""


def payload(python: str, marker: Path) -> bytes:
    return subprocess.run([python, "-c", PAYLOAD, str(marker)], capture_output=True, check=True).stdout


@pytest.mark.thorough
def test_horovods_own_rendezvous_runs_the_payload(tmp_path: Path, job_python: str) -> None:
    """So that the test below proves something."""
    marker, port = tmp_path / "ran", free_port()
    server = subprocess.Popen([job_python, "-c", HOROVODS_OWN, str(port)])
    try:
        until(lambda: answers(port))
        put(port, "none", payload(job_python, marker))
        assert marker.exists()
    finally:
        server.kill()
        server.wait()


def test_our_driver_does_not_whoever_signs_it(elastic: ElasticJob, job_python: str, tmp_path: Path) -> None:
    elastic.offer("h1")
    elastic.driver.start()
    h1 = elastic.host(1)
    elastic.sees(h1, "step 2 of 1 ranks")
    marker = tmp_path / "ran"
    body = payload(job_python, marker)
    statuses = []
    for secret in ("none", elastic.group.secret):
        for data in (body, base64.b64decode(body)):
            statuses.append(put(elastic.group.port, secret, data))
            for path in ("/global/5", "/local_h1/5", "/runfunc/func", "/ring/poll", "/ring/exit"):
                for method in ("GET", "PUT", "DELETE", "POST"):
                    send_request("127.0.0.1", elastic.group.port, secret, method, path, data, 20)
    print(f"code executed: {marker.exists()}")
    assert statuses == [401, 401, 403, 403]
    assert not marker.exists()
    elastic.enough()
    assert elastic.driver.wait()["code"] == 0


def put(port: int, secret: str, body: bytes) -> int:
    return send_request("127.0.0.1", port, secret, "PUT", "/worker_addresses/h1:0", body, 20)[0]


def answers(port: int) -> bool:
    try:
        send_request("127.0.0.1", port, "none", "GET", "/global/0", b"", 2)
    except OSError:
        return False
    return True
