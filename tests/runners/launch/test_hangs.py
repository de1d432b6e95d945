"""A rank that hangs in a step, with real Horovod: its inspector ends the group, or the group goes on without it."""

import re
import signal
from pathlib import Path

import pytest

from portal.jobs.causes.kinds import HANGS as HANGING_RANK
from tests.runners.launching import Attempt, Container, attempt, local_group, until

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(400)]

COUNTS = """
import os, signal, time
import horovod.torch as hvd
import torch

ELASTIC = os.environ.get("HOROVOD_ELASTIC") == "1"
hvd.init()


def step(number):
    time.sleep(0.1)
    ranks = int(hvd.allreduce(torch.ones(1), name="ranks", op=hvd.Sum).item())
    print(f"step {number} of {ranks} ranks", flush=True)
    if number == 5 and hvd.rank() == 1:
        FAILS
    return ranks


def count(state):
    while state.step < 25:
        step(state.step + 1)
        state.step += 1
        state.commit()


if ELASTIC:
    hvd.elastic.run(count)(hvd.elastic.TorchState(step=0))
else:
    for number in range(1, 26):
        step(number)
"""
HANGS = "print('hangs', flush=True); time.sleep(600)"
STOPS = "print('hangs', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
QUICK = (("HOROVOD_STALL_CHECK_TIME_SECONDS", "2"), ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "8"))
START_SECONDS = 120
"""For importing torch on a busy machine."""


def containers_of(made: Attempt, fails: str, elastic: bool) -> list[Container]:
    """A driver and two hosts of one rank each, started; the second one has begun to hang."""
    group, command = local_group(1 if elastic else 2, 2), ("python", "-c", COUNTS.replace("FAILS", fails))
    driver = made.container(command, "horovod", "driver", "driver", 0, group, elastic=elastic, env=QUICK)
    for name in ("h1", "h2"):
        made.container(command, "horovod", "host", name, 1, group, elastic=elastic, env=QUICK)
    driver.tell(hosts=[("h1", 1), ("h2", 1)])
    for container in made.containers:
        container.start(SCHEDULEARN_STOPPED_SECONDS="3")
    until(lambda: "hangs" in made.containers[2].log(), START_SECONDS, lambda: summary(made))
    return made.containers


def summary(made: Attempt) -> str:
    return "\n".join(container.summary() for container in made.containers)


@pytest.mark.thorough
def test_a_rank_that_hangs_in_a_step_ends_a_static_group(tmp_path: Path, job_python: str) -> None:
    with attempt(tmp_path, job_python) as made:
        driver, h1, _ = containers_of(made, HANGS, elastic=False)
        exit = driver.wait(120)
        assert exit["reason"] == "exited" and exit["code"] != 0
        log = h1.log()
    cause = HANGING_RANK.search(log)
    assert cause, log
    assert cause.group(1) == "8" and re.match(r"Missing ranks:\n1!: \[\S*ranks\]\n", cause.group(0))


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        (HANGS, "The rank in slot 0 of h2 hangs, the others wait for it: it is ended"),
        pytest.param(STOPS, "exit code 137", marks=pytest.mark.thorough),
    ],
    ids=["hangs", "is stopped"],
)
def test_an_elastic_group_goes_on_without_a_rank_that(tmp_path: Path, job_python: str, fails: str, words: str) -> None:
    with attempt(tmp_path, job_python) as made:
        driver, h1, h2 = containers_of(made, fails, elastic=True)
        assert driver.wait(120) == {"code": 0, "reason": "exited", "detail": ""}, summary(made)
        assert h2.wait(30)["reason"] == "stopped"  # its GPU is free
    assert words in driver.log("setup")
    steps = re.findall(r"^step (\d+) of (\d) ranks", h1.log(), re.MULTILINE)
    assert steps[-1] == ("25", "1")
    assert h2.log().rstrip().endswith("hangs")


@pytest.mark.thorough
def test_a_stopped_rank_ends_a_static_group_before_gloo_does(tmp_path: Path, job_python: str) -> None:
    with attempt(tmp_path, job_python) as made:
        driver, _, h2 = containers_of(made, STOPS, elastic=False)
        assert driver.wait(60)["code"] == 128 + signal.SIGKILL, summary(made)
    assert "was stopped by a signal" in h2.log("setup")
