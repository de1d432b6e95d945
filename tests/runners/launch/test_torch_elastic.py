"""Elastic groups of torchrun's kind with real supervisors and drivers. Their ranks need no PyTorch to be counted."""

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runners.launch.host_worker import Verdict
from runners.messages.launch import RankEnded
from tests.runners.launching import Attempt, Container, attempt, local_group, until

pytestmark = pytest.mark.timeout(180)

STEPS = """
import json, os, pathlib, signal, sys, time
kept = pathlib.Path(os.environ["SCHEDULEARN_CHECKPOINTS"]) / "step"
notice = pathlib.Path(os.environ["SCHEDULEARN_NOTICE"])
rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
reasons = []
signal.signal(signal.SIGTERM, lambda *_: reasons.append(json.loads(notice.read_text())["reason"]))
step = int(kept.read_text()) if kept.exists() else 0
print(f"rank {rank} of {size} pid {os.getpid()} from step {step}, notice {notice.exists()}", flush=True)
while not reasons and not (kept.parent / "enough").exists():
    time.sleep(0.1)
    if rank == "0":
        step += 1
        print(f"step {step} of {size} ranks", flush=True)
        kept.with_suffix(".new").write_text(str(step))
        kept.with_suffix(".new").replace(kept)
print("stop reason", *reasons, flush=True)
"""
COMMAND = ("python", "-c", STEPS)


class ElasticJob:
    def __init__(self, made: Attempt, moves: bool) -> None:
        self.made = made
        self.group = local_group(1, 3)
        if moves:
            self.group = replace(self.group, number=1, subnet="127.0.0.0/8", address="127.0.0.1")

    def driver(self) -> Container:
        return self._container("driver", "driver", 0)

    def host(self, number: int, slots: int = 1) -> Container:
        return self._container("host", f"h{number}", slots)

    def _container(self, role: str, name: str, slots: int) -> Container:
        return self.made.container(
            COMMAND,
            "torchrun",
            role,  # type: ignore[arg-type]  # one of the two words
            name,
            slots,
            self.group,
            elastic=True,
        )

    def sees(self, host: Container, words: str, after: int = 0) -> None:
        until(lambda: words in host.log()[after:], 30, self.summary)

    def summary(self) -> str:
        return "\n".join(container.summary() for container in self.made.containers)

    def enough(self) -> None:
        (self.made.home / "checkpoints" / "enough").touch()

    def steps(self) -> list[int]:
        texts = [container.log() for container in self.made.containers]
        return sorted(int(step) for text in texts for step in re.findall(r"^step (\d+) of", text, re.MULTILINE))

    def did_every_step_once(self) -> bool:
        steps = self.steps()
        return steps == list(range(1, len(steps) + 1))


@pytest.fixture
def elastic(tmp_path: Path) -> Iterator[ElasticJob]:
    with attempt(tmp_path) as made:
        yield ElasticJob(made, moves=False)


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[ElasticJob]:
    with attempt(tmp_path) as made:
        yield ElasticJob(made, moves=True)


def test_a_group_grows_leaves_its_first_host_and_does_every_step_once(elastic: ElasticJob) -> None:
    driver, h1, h2 = elastic.driver(), elastic.host(1), elastic.host(2, slots=2)
    driver.tell(hosts=[("h1", 1)])
    driver.start()
    h1.start()
    elastic.sees(h1, "step 3 of 1 ranks")
    h2.start()
    driver.tell(hosts=[("h1", 1), ("h2", 2)])
    elastic.sees(h1, "of 3 ranks")
    assert "stop reason resized" in h1.log()
    until(lambda: "rank 1 of 3" in h2.log("0") and "rank 2 of 3" in h2.log("1"), 20, elastic.summary)
    h1.tell(stop={"reason": "drained", "grace_seconds": 10})
    until(lambda: "being drained" in h1.log("setup"), 20, elastic.summary)
    driver.tell(hosts=[("h2", 2)])
    assert h1.wait(20)["reason"] == "stopped"
    assert "stop reason drained" in h1.log()
    elastic.sees(h2, "of 2 ranks")
    assert "notice True" not in h2.log("0") + h2.log("1")  # the notice was for the ranks before them
    elastic.enough()
    assert driver.wait() == {"code": 0, "reason": "exited", "detail": ""}
    assert h2.wait()["code"] == 0
    assert elastic.did_every_step_once(), elastic.summary()
    assert h2.labels() == {"setup": "set-up", "0": "rank 0", "1": "rank 1"}


def test_a_rank_that_is_killed_ends_the_attempt_with_its_code(elastic: ElasticJob) -> None:
    driver, h1, h2 = elastic.driver(), elastic.host(1), elastic.host(2)
    driver.tell(hosts=[("h1", 1), ("h2", 1)])
    for container in (driver, h1, h2):
        container.start()
    elastic.sees(h1, "step 3 of 2 ranks")
    (pid,) = re.findall(r"pid (\d+)", h2.log())
    os.kill(int(pid), signal.SIGKILL)
    assert driver.wait() == Verdict(137, "exited", RankEnded(1, "h2", 137)).to_json()
    assert h1.wait()["code"] == 137


def test_another_driver_takes_over_what_runs_and_changes_it(moving: ElasticJob) -> None:
    driver, h1, h2 = moving.driver(), moving.host(1), moving.host(2)
    driver.tell(hosts=[("h1", 1), ("h2", 1)])
    for container in (driver, h1, h2):
        container.start()
    moving.sees(h1, "step 3 of 2 ranks")
    kill(driver)
    following = moving.driver()
    following.tell(hosts=[("h1", 1), ("h2", 1)])
    following.start()
    until(lambda: "Taking over the ranks on h1, h2" in following.log("setup"), 40, moving.summary)
    alone = len(moving.steps())
    moving.sees(h1, f"step {alone + 5} of 2 ranks")
    assert len(re.findall("pid", h1.log() + h2.log())) == 2  # the same processes
    following.tell(hosts=[("h2", 1)])
    h1.tell(stop={"reason": "preempted", "grace_seconds": 10})
    moving.sees(h2, "of 1 ranks")
    moving.enough()
    assert following.wait()["code"] == 0
    assert moving.did_every_step_once(), moving.summary()


def test_cancelling_ends_a_group_at_once(elastic: ElasticJob) -> None:
    driver, h1 = elastic.driver(), elastic.host(1)
    driver.tell(hosts=[("h1", 1)])
    driver.start()
    h1.start()
    elastic.sees(h1, "step 2 of 1 ranks")
    stop = {"reason": "cancelled", "grace_seconds": 60}
    driver.tell(stop=stop, hosts=[("h1", 1)])
    h1.tell(stop=stop)
    assert h1.wait(30)["reason"] == driver.wait(30)["reason"] == "stopped"
    assert json.loads((h1.scribe / "notice.json").read_text())["reason"] == "cancelled"


def kill(container: Container) -> None:
    assert container.process is not None
    os.killpg(container.process.pid, signal.SIGKILL)
    container.process.wait(30)
