"""Containers get the GPUs of their job, by NVIDIA's container toolkit, and no other."""

import re

import pytest

from runners.host.gpus import cuda_devices
from runners.runtime import Folders
from runners.runtimes.docker import DockerRuntime
from runners.runtimes.host_config import GPU_UUID
from tests.runners.conftest import make_spec
from tests.runners.runtimes.test_docker import exited, run, wait

pytestmark = [pytest.mark.gpu, pytest.mark.docker, pytest.mark.timeout(900)]

LISTS = (
    "import subprocess\nprint(subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True).stdout, flush=True)"
)
DEVICES = "import glob\nprint(glob.glob('/dev/nvidia*'), flush=True)"


def test_a_container_sees_its_gpus_and_no_other(runtime: DockerRuntime, folders: Folders) -> None:
    uuids = tuple(gpu.uuid for gpu in cuda_devices())
    for own in (uuids[:1], uuids[-1:], uuids):
        spec = make_spec(gpus=own, gpu_kind="cuda")
        run(runtime, spec, folders, LISTS)
        wait(runtime, exited)
        output = runtime.logs(spec.name, 10_000).decode()
        assert [found.group() for found in re.finditer(GPU_UUID, output)] == list(own)
        runtime.remove(spec.name)


def test_a_container_without_gpus_has_no_device_of_one(runtime: DockerRuntime, folders: Folders) -> None:
    spec = make_spec()
    run(runtime, spec, folders, DEVICES)
    wait(runtime, exited)
    assert runtime.logs(spec.name, 1000) == b"[]\n"
