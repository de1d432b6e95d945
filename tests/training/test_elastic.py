"""Elastic rank groups of supervisors and a driver that train with the library: ranks join, leave and fail, and no sample is lost or counted twice.

``make test`` has the same with a portal and containers (tests/system/test_training.py).
"""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runners.spec import Launcher
from tests.runners.launching import Container, ElasticJob, attempt, until

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(400)]

COUNTING = Path(__file__).parent / "scripts" / "counting.py"
DRIFTING = Path(__file__).parent / "scripts" / "drifting.py"
THAWING = Path(__file__).parent / "scripts" / "thawing.py"
EXACT = "0 of 480 samples were not used"
STOPPED: tuple[tuple[Launcher, int], ...] = (("torchrun", 2), ("command", 1))


@pytest.fixture
def elastic(tmp_path: Path, job_python: str) -> Iterator[ElasticJob]:
    with attempt(tmp_path, job_python) as made:
        # Long enough for ranks that import torch on a busy machine to come before it is over.
        yield ElasticJob(made, command=("python", "train.py", "15", "0.05"), code=COUNTING, max_ranks=3)


@pytest.mark.thorough
def test_each_sample_counts_once_per_epoch_while_a_group_grows_shrinks_and_loses_a_rank(elastic: ElasticJob) -> None:
    elastic.offer("h1")
    elastic.driver.start()
    h1 = elastic.host(1)
    elastic.sees(h1, "step 5 of 1 ranks")
    h2, h3 = elastic.host(2), elastic.host(3)
    until(lambda: "Waiting" in h2.log("setup") and "Waiting" in h3.log("setup"))
    elastic.offer("h1", "h2", "h3")
    elastic.sees(h1, "of 3 ranks")
    three = len(h1.log())
    os.kill(int(re.findall(r"pid (\d+)", h3.log())[-1]), signal.SIGKILL)
    elastic.offer("h1", "h2")
    elastic.sees(h1, "of 2 ranks", three)
    elastic.offer("h1")
    h2.tell(stop={"reason": "preempted", "grace_seconds": 20})
    assert h2.wait(30)["reason"] == "stopped"
    assert elastic.driver.wait(120) == {"code": 0, "reason": "exited", "detail": ""}
    assert h1.wait()["code"] == 0
    assert EXACT in h1.log()
    assert f"normalised in {passes(h1.log(), 600)} passes" in h1.log()  # 15 epochs of 480 samples, 12 at once


def passes(log: str, steps: int) -> int:
    """Return the passes of all steps: two where a rank was alone. Of steps that were undone the last attempt counts.

    Ranks report their number when they begin, not at each step: a step may end when ranks learn of others that join.
    """
    ranks = [0] * steps
    for size, done in re.findall(r"^size (\d+) rank 0 step (\d+)", log, re.MULTILINE):
        ranks[int(done) :] = [int(size)] * (steps - int(done))
    return sum(2 if size == 1 else 1 for size in ranks)


class Tries:
    """Attempts of one job: each has folders of its own, but for the checkpoints."""

    def __init__(self, home: Path, python: str) -> None:
        self.home, self.python = home, python
        (home / "checkpoints").mkdir()
        self.number = 0

    @contextmanager
    def next(self, launcher: Launcher, slots: int, mode: str = "bsp") -> Iterator[Container]:
        """A host that trains on so many ranks."""
        self.number += 1
        home = self.home / str(self.number)
        home.mkdir()
        (home / "checkpoints").symlink_to(self.home / "checkpoints")
        with attempt(home, self.python) as made:
            command = ("python", "train.py", "3", "0.05", mode)
            host = made.container(command, launcher, slots=slots, code=COUNTING).start()
            until(lambda: f"of {slots} ranks" in host.log(), 120, host.summary)
            yield host


def steps(host: Container) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+) of", host.log(), re.MULTILINE)]


@pytest.mark.thorough
def test_a_stopped_training_goes_on_where_it_was_on_another_number_of_ranks(tmp_path: Path, job_python: str) -> None:
    """Two ranks of torchrun, then a plain command, then three ranks: each but the last is stopped, and saves in time."""
    tries, done, log = Tries(tmp_path, job_python), list[int](), ""
    for launcher, slots in STOPPED:
        with tries.next(launcher, slots) as host:
            host.tell(stop={"reason": "preempted", "grace_seconds": 20})
            assert host.wait(30)["reason"] == "stopped"
            done += steps(host)
            log += host.log()
    with tries.next("torchrun", 3) as host:
        assert host.wait(120) == {"code": 0, "reason": "exited", "detail": ""}
        done += steps(host)
        log += host.log()
        assert EXACT in log and f"normalised in {passes(log, 120)} passes" in log
    assert (
        done == sorted(set(done)) and done[-1] == 120
    )  # the last step of an attempt is done, but not reported any more


@pytest.mark.thorough
def test_a_stopped_parameter_server_goes_on_on_another_number_of_ranks(tmp_path: Path, job_python: str) -> None:
    """What workers were computing when they were stopped is computed again, and nothing else is."""
    tries = Tries(tmp_path, job_python)
    for slots in (2, 1):
        with tries.next("torchrun", slots, "asp") as host:
            host.tell(stop={"reason": "preempted", "grace_seconds": 20})
            assert host.wait(30)["reason"] == "stopped"
    with tries.next("torchrun", 3, "asp") as host:
        assert host.wait(120) == {"code": 0, "reason": "exited", "detail": ""}
        assert EXACT in host.log()


@pytest.mark.thorough
def test_a_rank_that_comes_after_a_layer_was_unfrozen_trains_it_too(tmp_path: Path, job_python: str) -> None:
    with attempt(tmp_path, job_python) as made:
        elastic = ElasticJob(made, command=("python", "train.py", "30", "0.1"), code=THAWING)
        elastic.offer("h1")
        elastic.driver.start()
        h1 = elastic.host(1)
        elastic.sees(h1, "of 1 ranks, epoch 2")
        h2 = elastic.host(2)
        elastic.offer("h1", "h2")
        elastic.sees(h1, "of 2 ranks")
        assert elastic.driver.wait(120) == {"code": 0, "reason": "exited", "detail": ""}
        assert h1.wait()["code"] == h2.wait()["code"] == 0
    for host in (h1, h2):
        assert "done: 0 and 0 of 120 samples" in host.log()
        assert "have not joined" not in host.log("setup")


def test_an_elastic_rank_group_whose_ranks_diverged_ends_and_is_not_formed_again(
    tmp_path: Path, job_python: str
) -> None:
    with attempt(tmp_path, job_python) as made:
        elastic = ElasticJob(made, code=DRIFTING, min_ranks=2)
        elastic.offer("h1", "h2")
        elastic.driver.start()
        hosts = [elastic.host(1), elastic.host(2)]
        assert elastic.driver.wait(200)["code"] == 1, elastic.summary()
        for host in hosts:
            assert host.wait(60)["code"] == 1
    for host in hosts:
        assert host.log().count("RanksDivergedError: The ranks have diverged: at step ") == 1
    assert elastic.driver.log("setup").count("The job now has") == 1
