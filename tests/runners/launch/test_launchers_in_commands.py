"""Other launchers in a plain command, as people type them: their ranks meet on the loopback of their host and share its threads."""

import json
from pathlib import Path

import pytest

from runners.spec import SHELL
from tests.runners.launching import attempt

SHARES = "import os; print(os.environ['OMP_NUM_THREADS'])"
RANKS = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {int(total)} with {os.environ['OMP_NUM_THREADS']} threads at {os.environ['MASTER_ADDR']}\\n", end="")
dist.destroy_process_group()
"""
HOROVOD = """
import horovod.torch as hvd
import torch
hvd.init()
print(f"rank {hvd.rank()} of {int(hvd.allreduce(torch.ones(1), op=hvd.Sum))}")
"""


@pytest.mark.parametrize(
    ("line", "threads"),
    [
        ("python -c", "4"),
        ("LOCAL_WORLD_SIZE=2 python -c", "2"),
        ("LOCAL_SIZE=4 python -c", "1"),
        ("HOROVOD_LOCAL_SIZE=8 python -c", "1"),
        ("LOCAL_WORLD_SIZE=1 python -c", "4"),
        ("LOCAL_WORLD_SIZE=many python -c", "4"),
        ("OMP_NUM_THREADS=3 LOCAL_WORLD_SIZE=2 python -c", "3"),
    ],
)
def test_ranks_of_a_command_share_its_threads(tmp_path: Path, line: str, threads: str) -> None:
    with attempt(tmp_path) as made:
        host = made.container((*SHELL, f'{line} "{SHARES}"'), slots=4).start()
        assert host.wait()["code"] == 0
    assert host.log().strip() == threads


def test_the_number_of_threads_that_a_job_sets_is_not_divided(tmp_path: Path) -> None:
    command = (*SHELL, f'LOCAL_WORLD_SIZE=2 python -c "{SHARES}"')
    with attempt(tmp_path) as made:
        host = made.container(command, slots=4, env=(("OMP_NUM_THREADS", "4"),)).start()
        assert host.wait()["code"] == 0
    assert host.log().strip() == "4"


@pytest.mark.parametrize(("kind", "expected"), [("cpu", "true"), ("cuda", None)])
def test_accelerate_connects_ranks_in_cpu_slots(tmp_path: Path, kind: str, expected: str | None) -> None:
    program = "import json, os; print(json.dumps(os.environ.get('ACCELERATE_USE_CPU')))"
    with attempt(tmp_path) as made:
        host = made.container(("python", "-c", program), gpu_kind=kind).start()
        assert host.wait()["code"] == 0
    assert json.loads(host.log()) == expected


@pytest.mark.horovod
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "line",
    [
        "torchrun --standalone --nproc_per_node=2 train.py",
        "python -m torch.distributed.run --nproc_per_node=2 train.py",
        pytest.param(
            "python -m torch.distributed.launch --use_env --nproc_per_node=2 train.py", marks=pytest.mark.thorough
        ),
    ],
)
def test_torchrun_in_a_command_starts_its_ranks(tmp_path: Path, job_python: str, line: str) -> None:
    code = tmp_path / "ranks.py"
    code.write_text(RANKS)
    with attempt(tmp_path, job_python) as made:
        host = made.container((*SHELL, line), slots=2, code=code).start()
        assert host.wait(150)["code"] == 0, host.summary()
    lines = [line for line in host.log().splitlines() if line.startswith("rank")]
    assert sorted(lines) == [f"rank {rank} of 2 with 1 threads at 127.0.0.1" for rank in (0, 1)]


@pytest.mark.horovod
@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_horovodrun_in_a_command_starts_its_ranks(tmp_path: Path, job_python: str) -> None:
    code = tmp_path / "ranks.py"
    code.write_text(HOROVOD)
    with attempt(tmp_path, job_python) as made:
        host = made.container((*SHELL, "horovodrun -np 2 python train.py"), slots=2, code=code).start()
        assert host.wait(150)["code"] == 0, host.summary()
    assert "rank 0 of 2" in host.log() and "rank 1 of 2" in host.log()
