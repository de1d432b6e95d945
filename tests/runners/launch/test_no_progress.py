"""A group that makes no progress ends and reports why: one with too few ranks, and one that keeps failing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.launch.host_worker import Verdict
from runners.messages.launch import LacksHosts, RestartedWithoutCommit
from tests.examples import mostly_thorough
from tests.runners.launching import ElasticJob, attempt

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(400)]


@pytest.fixture
def elastic(tmp_path: Path, job_python: str) -> Iterator[ElasticJob]:
    with attempt(tmp_path, job_python) as made:
        yield ElasticJob(made, min_ranks=2)


@pytest.mark.parametrize("how", mostly_thorough(["given back", "lost"], "lost"))
def test_the_driver_of_a_group_with_too_few_ranks_gives_up(elastic: ElasticJob, how: str) -> None:
    elastic.offer("h1", "h2")
    elastic.driver.start(SCHEDULEARN_ELASTIC_SECONDS="6", SCHEDULEARN_FAREWELL_SECONDS="1")
    h1, h2 = elastic.host(1), elastic.host(2)
    elastic.sees(h1, "step 5 of 2 ranks")
    elastic.offer("h1")
    if how == "lost":
        h2.close()
    else:
        h2.tell(stop={"reason": "drained", "grace_seconds": 5})
    ended = elastic.driver.wait(60)
    assert ended == Verdict(1, "launch_error", LacksHosts(2, 6)).to_json()
    assert h1.wait(30)["code"] != 0


BREAKS = """
import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
hvd.init()

@hvd.elastic.run
def train(state):
    state.step += 1
    if COMMITS:
        state.commit()
    if state.step < 12:
        raise HorovodInternalError(f"nothing works, step {state.step}")
    print("accuracy: 1.0000", flush=True)

train(hvd.elastic.TorchState(step=0))
"""


@pytest.mark.parametrize(
    ("commits", "driver_env", "limit"),
    mostly_thorough(
        [(False, (), 5), (False, (("SCHEDULEARN_RING_RETRIES", "2"),), 2), (True, (), 5)],
        (False, (), 5),
    ),
    ids=["no commits", "no commits and a limit of its own", "commits"],
)
def test_a_group_that_keeps_failing_without_a_commit_ends(
    tmp_path: Path, job_python: str, commits: bool, driver_env: tuple[tuple[str, str], ...], limit: int
) -> None:
    code = tmp_path / "breaks.py"
    code.write_text(BREAKS.replace("COMMITS", str(commits)))
    with attempt(tmp_path, job_python) as made:
        elastic = ElasticJob(made, code=code, driver_env=driver_env, min_ranks=2)
        elastic.offer("h1", "h2")
        elastic.driver.start(SCHEDULEARN_FAREWELL_SECONDS="1")
        h1, h2 = elastic.host(1), elastic.host(2)
        ended = elastic.driver.wait(120)
        assert "The ranks failed and are restarted: nothing works, step 1" in h1.log(), elastic.summary()
        if commits:
            assert ended == {"code": 0, "reason": "exited", "detail": ""}, elastic.summary()
        else:
            assert ended == Verdict(1, "exited", RestartedWithoutCommit(limit)).to_json()
            assert h1.log().count("nothing works, step 1") == limit + 1, "the first group and those after it"
            assert h2.wait(30)["code"] != 0
