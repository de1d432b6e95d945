"""The training library on GPUs, in the environment that a node with GPUs prepares: Horovod and torch built for CUDA."""

from pathlib import Path
from typing import Any

import pytest

from runners.host.gpus import cuda_devices
from tests import engine
from tests.training.test_ranks import run

pytestmark = [pytest.mark.gpu, pytest.mark.horovod, pytest.mark.timeout(3600)]

LEARNS = str(Path(__file__).parent / "scripts" / "learns.py")
MOST_RANKS = 4


@pytest.fixture(scope="module")
def python() -> str:
    return engine.job_environment_python(cuda=True)


@pytest.fixture(scope="module")
def on_processors(python: str) -> dict[str, Any]:
    return run([python, LEARNS, "cpu"], python)


def test_it_learns_on_a_gpu_as_on_a_processor(python: str, on_processors: dict[str, Any]) -> None:
    found = run([python, LEARNS, "cuda"], python)
    assert found["whole"] == pytest.approx(on_processors["whole"], rel=0.01)
    assert found["mixed"] == pytest.approx(on_processors["whole"], rel=0.05)
    assert found["whole"][-1] < 0.5 * found["whole"][0]


@pytest.mark.parametrize("launcher", ["torchrun", "horovod"])
def test_as_many_ranks_as_there_are_gpus_learn_what_one_does(
    launcher: str, python: str, on_processors: dict[str, Any]
) -> None:
    """Sums go over NCCL."""
    ranks = str(min(MOST_RANKS, len(cuda_devices())))
    launched = {
        "torchrun": ["torchrun", "--nproc-per-node", ranks],
        "horovod": ["horovodrun", "--gloo", "-np", ranks, "python"],
    }
    found = run([*launched[launcher], LEARNS, "cuda"], python)
    assert found["ranks"] == int(ranks)
    assert found["whole"] == pytest.approx(on_processors["whole"], rel=0.01)


def test_horovod_reduces_by_nccl(python: str) -> None:
    done = run([python, "-c", "import horovod.torch as it, json; print(json.dumps({'nccl': it.nccl_built()}))"], python)
    assert done["nccl"]


def test_ranks_with_a_parameter_server_learn_on_gpus(python: str) -> None:
    """Two at least, which may share a GPU: what they tell each other goes over processors."""
    ranks = max(2, min(MOST_RANKS, len(cuda_devices())))
    started = ["torchrun", "--nproc-per-node", str(ranks), LEARNS, "cuda"]
    found = run(["env", "SCHEDULEARN_MODE=asp", *started], python)
    assert found["ranks"] == ranks
    for losses in (found["whole"], found["mixed"]):
        assert losses[-1] < 0.5 * losses[0]
