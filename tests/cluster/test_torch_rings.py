"""Rings over several machines that are not elastic Horovod: torchrun, elastic and of a fixed size, and static Horovod."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import Lab, lab
from tests.cluster.test_rings import ENVIRONMENT, GROW_AT_ONCE, START_SECONDS, Run, steps_in
from tests.system.product import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

HERE = Path(__file__).resolve().parent
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


class TorchRun(Run):
    launcher = "torchrun"
    script = (HERE / "torch_job.py").read_text()


@pytest.fixture(scope="module")
def it() -> Iterator[Lab]:
    with lab(2, [ENVIRONMENT]) as made:
        assert made.api("PUT", "policy/", json=GROW_AT_ONCE).status_code == 200
        yield made


@pytest.fixture(autouse=True)
def fresh(it: Lab) -> Iterator[None]:
    for machine in it.lan.machines:
        (machine.folder / "data" / "enough").unlink(missing_ok=True)
    yield


@pytest.mark.parametrize("launcher", list(SUMS))
def test_a_ring_of_a_fixed_size_over_two_machines_adds_up(it: Lab, launcher: str) -> None:
    """Three ranks, where each machine has two slots."""
    code = it.upload(f"sums {launcher}", train=SUMS[launcher])
    job = it.submit(code, "train.py", launcher=launcher, environment=ENVIRONMENT, min_gpus=3, max_gpus=3)
    assert it.wait_for_job(job, "SUCCEEDED", "FAILED", seconds=2 * START_SECONDS) == "SUCCEEDED"
    (attempt,) = it.get(f"jobs/{job}/attempts/")
    hosts = [part for part in attempt["containers"] if part["role"] == "host"]
    assert {part["node"] for part in hosts} == {machine.name for machine in it.lan.machines}
    assert [(part["exit_reason"], part["exit_code"]) for part in hosts] == [("exited", 0)] * 2
    for rank in range(3):
        wait_for_line(it, job, rank)


def wait_for_line(it: Lab, job: int, rank: int) -> None:
    line = f"rank {rank} of 3: the sum is 6.0\n".encode()
    wait_for(f"the line of rank {rank}", lambda: line in it.log(job, f"rank {rank}"), 30)


def test_torchrun_grows_over_two_machines_and_leaves_the_first_without_losing_a_step(it: Lab) -> None:
    run = TorchRun(it, 3)
    run.sees("of 1 ranks", 3)
    second = run.fill()
    run.node(run.other, "resume")
    run.sees("of 2 ranks", run.last())
    run.cancel(second)
    run.sees("of 3 ranks", run.last())
    run.cancel(run.filler)
    run.node(run.first, "drain")
    run.sees("of 2 ranks", run.last())
    wait_for("another driver", lambda: run.events("driver"), 60)
    run.finish()
    assert run.did_every_step_once()


def test_torchrun_survives_that_its_first_machine_loses_its_power(it: Lab) -> None:
    """The last test of this module: the machine stays dark."""
    run = TorchRun(it, 3)
    run.sees("of 1 ranks", 3)
    run.node(run.other, "resume")
    run.sees("of 3 ranks", run.last())
    run.cancel(run.filler)
    it.kill(f"agent:{run.first.name}")
    run.first.power_off()
    run.sees("of 2 ranks", run.last(), 3 * START_SECONDS)
    run.finish()
    # What rank 0 printed last is on the disk of the dark machine. The step that nobody had kept yet is done again.
    logs = (run.first.folder / "agent" / "containers").glob(f"sl-{run.job}-*/scribe/log/0.log")
    printed = {*run.steps(), *(step for log in logs for step in steps_in(log.read_text()))}
    assert printed == set(range(1, run.last() + 1))
    assert len(run.steps()) - len(set(run.steps())) <= 1
    assert run.events("placed") == 1
