"""torchrun under the supervisor: one stream for each rank, over one host and over several."""

import os
from collections.abc import Collection
from functools import partial
from pathlib import Path

import pytest

from runners.launch.ranks import processors
from runners.messages.launch import RanksApart
from tests.runners.launching import WAIT_FOR_RELEASE, attempt, local_group, until

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(400)]

WHO = """
import os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
print("out of rank", dist.get_rank(), "of", dist.get_world_size())
print("err of rank", dist.get_rank(), file=sys.stderr)
dist.barrier()
"""
STAYS = f"import os; print(os.getpid()){WAIT_FOR_RELEASE}"
LATE = """
import sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
own = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
sys.setswitchinterval(60)
dist.all_gather([torch.empty(1000)], torch.zeros(1000), group=own, async_op=True)
until = time.monotonic() + 1
while time.monotonic() < until:
    pass
"""
PLAIN = """
import torch
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(30):
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
"""
ONE_FAILS = f"print('up'){WAIT_FOR_RELEASE}raise SystemExit(3 if os.environ['RANK'] == '1' else 0)"


def test_each_rank_has_its_own_stream(tmp_path: Path, job_python: str) -> None:
    with attempt(tmp_path, job_python) as made:
        host = made.container(("python", "-c", WHO), "torchrun", slots=2).start()
        assert host.wait(150) == {"code": 0, "reason": "exited", "detail": ""}
    for rank in ("0", "1"):
        lines = [line for line in host.log(rank).splitlines() if "of rank" in line]
        assert lines == [f"out of rank {rank} of 2", f"err of rank {rank}"]
    assert host.labels() == {"setup": "set-up", "0": "rank 0", "1": "rank 1"}


def runs_on(pid: int, processors: Collection[int]) -> bool:
    return os.sched_getaffinity(pid) == set(processors)


@pytest.mark.thorough
def test_ranks_in_cpu_slots_keep_to_processors_of_their_own(tmp_path: Path, job_python: str) -> None:
    with attempt(tmp_path, job_python) as made:
        host = made.container(("python", "-c", STAYS), "torchrun", slots=2).start()
        here = os.sched_getaffinity(0)
        for slot in (0, 1):
            pid = int(until(partial(host.log, str(slot)), 60, host.summary))
            until(partial(runs_on, pid, processors(host.spec, slot, here) or here))
        made.release()
        assert host.wait(150)["code"] == 0


@pytest.mark.thorough
def test_a_script_that_ignores_its_ranks_is_reported(tmp_path: Path, job_python: str) -> None:
    with attempt(tmp_path, job_python) as made:
        host = made.container(("python", "-c", PLAIN), "torchrun", slots=2).start()
        assert host.wait(150)["message"] == RanksApart().data()
    assert host.log("setup").count(RanksApart().text) == 1


def test_unequal_hosts_form_one_group(tmp_path: Path, job_python: str) -> None:
    with attempt(tmp_path, job_python) as made:
        group = local_group(3, 3)
        hosts = [
            made.container(("python", "-c", WHO), "torchrun", "host", f"h{number}", slots, group)
            for number, slots in enumerate((2, 1))
        ]
        for host in hosts:
            host.tell(hosts=[("h0", 2), ("h1", 1)])
            host.start()
        for host in hosts:
            assert host.wait(150)["code"] == 0, host.summary()
        ranks = {label for host in hosts for name, label in host.labels().items() if name != "setup"}
        assert ranks == {"rank 0", "rank 1", "rank 2"}
        output = hosts[0].log("0") + hosts[0].log("1") + hosts[1].log("0")
        assert sorted(line for line in output.splitlines() if line.startswith("out")) == [
            f"out of rank {rank} of 3" for rank in range(3)
        ]


def test_a_failing_rank_fails_the_job(tmp_path: Path, job_python: str) -> None:
    with attempt(tmp_path, job_python) as made:
        host = made.container(("python", "-c", ONE_FAILS), "torchrun", slots=2).start()
        until(lambda: host.log("0") and host.log("1"), 60, host.summary)
        made.release()
        exit = host.wait(150)
    assert (exit["code"], exit["reason"]) == (1, "exited")
    assert host.log("1") == "up\n"
    assert "exitcode" in host.log("setup")  # torchrun's own account of which rank failed


@pytest.mark.thorough
def test_an_ordinary_script_ends_well_though_its_collectives_threads_are_late(tmp_path: Path, job_python: str) -> None:
    """They wait for Python's lock when Python ends, which would end them by force, and the ranks with them."""
    with attempt(tmp_path, job_python) as made:
        host = made.container(("python", "-c", LATE), "torchrun", slots=2).start()
        assert host.wait(150)["code"] == 0, host.summary()


@pytest.mark.thorough
def test_a_stop_ends_all_ranks(tmp_path: Path, job_python: str) -> None:
    with attempt(tmp_path, job_python) as made:
        host = made.container(("sh", "-c", "echo up; sleep 100"), "torchrun", slots=2).start()
        until(lambda: "up" in host.log("0") and "up" in host.log("1"), 60, host.summary)
        host.tell(stop={"reason": "cancelled", "grace_seconds": 5})
        assert host.wait(30)["reason"] == "stopped"
