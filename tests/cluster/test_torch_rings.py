"""Rings over several machines that are not elastic Horovod: torchrun, elastic and of a fixed size, and static Horovod."""

import pytest

from tests.cluster.lab import Lab
from tests.cluster.ring_run import ENVIRONMENT, START_SECONDS, Run
from tests.system.product import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SUMS = {
    "horovod": """
import horovod.torch as hvd, os, torch
hvd.init()
total = hvd.allreduce(torch.tensor(hvd.rank() + 1.0), name="total", op=hvd.Sum).item()
print(f"rank {hvd.rank()} of {hvd.size()}: the sum is {total}")
""",
    "torchrun": """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(dist.get_rank() + 1.0)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: the sum is {total.item()}")
dist.barrier()
dist.destroy_process_group()
""",
}


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("horovod", marks=pytest.mark.thorough)])
def test_a_ring_of_a_fixed_size_over_two_machines_adds_up(ring_lab: Lab, launcher: str) -> None:
    """Three ranks, where each machine has two slots."""
    code = ring_lab.upload(f"sums {launcher}", train=SUMS[launcher])
    job = ring_lab.submit(code, "train.py", launcher=launcher, environment=ENVIRONMENT, min_gpus=3, max_gpus=3)
    ring_lab.succeeds(job, seconds=2 * START_SECONDS)
    (attempt,) = ring_lab.get(f"jobs/{job}/attempts/")
    hosts = [part for part in attempt["containers"] if part["role"] == "host"]
    assert {part["node"] for part in hosts} == {machine.name for machine in ring_lab.lan.machines}
    assert [(part["exit_reason"], part["exit_code"]) for part in hosts] == [("exited", 0)] * 2
    for rank in range(3):
        wait_for_line(ring_lab, job, rank)


def wait_for_line(ring_lab: Lab, job: int, rank: int) -> None:
    line = f"rank {rank} of 3: the sum is 6.0\n".encode()
    wait_for(f"the line of rank {rank}", lambda: line in ring_lab.log(job, f"rank {rank}"), 30)


@pytest.mark.thorough
def test_torchrun_grows_over_two_machines_and_leaves_the_first_without_losing_a_step(ring_lab: Lab) -> None:
    Run(ring_lab, "torchrun", 3).grows_to_three_and_leaves_the_first_machine()


@pytest.mark.thorough
def test_torchrun_survives_that_its_first_machine_loses_its_power(ring_lab: Lab) -> None:
    Run(ring_lab, "torchrun", 3).survives_that_the_first_machine_loses_its_power()
