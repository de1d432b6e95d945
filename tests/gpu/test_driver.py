"""What a node reports of its GPUs, compared with the output of the driver's own program."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runners.host.gpu_watch import GpuWatch
from runners.host.gpus import Gpu, cuda_devices, driver_facts, driver_problem, inventory
from runners.runtimes.host_config import GPU_UUID

pytestmark = pytest.mark.gpu

HOLDS = Path(__file__).parent / "scripts" / "holds.py"


def nvidia_smi(columns: str) -> list[list[str]]:
    """Query nvidia-smi and return a row for each GPU."""
    command = ["nvidia-smi", f"--query-gpu={columns}", "--format=csv,noheader,nounits"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]


@contextmanager
def foreign_process(index: int, mebibytes: int) -> Iterator[int]:
    """Start a process that belongs to no job and takes so much memory of a GPU; yield its process id."""
    command = [sys.executable, str(HOLDS), str(index), str(mebibytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdin
        assert process.stdout.readline() == "holds it\n"
        yield process.pid
        process.stdin.close()


def outside_of(gpu: Gpu) -> str:
    return gpu.outside.text if gpu.outside else ""


def test_the_inventory_is_what_the_driver_reports() -> None:
    assert driver_problem() is None
    found = cuda_devices()
    rows = nvidia_smi("uuid,name,memory.total,index")
    assert [[gpu.uuid, gpu.model, str(gpu.index)] for gpu in found] == [[row[0], row[1], row[3]] for row in rows]
    assert [gpu.memory_mib for gpu in found] == pytest.approx([int(row[2]) for row in rows], rel=0.02)
    assert all(GPU_UUID.fullmatch(gpu.uuid) for gpu in found), "containers are given them by these"
    assert [gpu.uuid for gpu in inventory()] == [gpu.uuid for gpu in found], "no CPU slots beside GPUs"


def test_readings_are_there_and_possible() -> None:
    for gpu in cuda_devices():
        assert gpu.healthy, gpu.problem
        assert gpu.utilisation_percent is not None and 0 <= gpu.utilisation_percent <= 100
        assert gpu.temperature_celsius is not None and 5 <= gpu.temperature_celsius < 100
        assert gpu.memory_used_mib is not None and 0 <= gpu.memory_used_mib <= gpu.memory_mib
    facts = driver_facts()
    assert facts["driver"] == nvidia_smi("driver_version")[0][0]
    assert float(facts["cuda"]) >= 11


def test_a_process_outside_the_portal_is_named_and_its_memory_counted() -> None:
    watch = GpuWatch()
    free = watch.inventory(lambda pid: False)[0]
    with foreign_process(0, 512) as pid:
        held = watch.inventory(lambda pid: False)[0]
        assert f"process {pid}" in outside_of(held)
        assert held.memory_used_mib is not None and free.memory_used_mib is not None
        assert held.memory_used_mib >= free.memory_used_mib + 512
        assert f"process {pid}" not in outside_of(watch.inventory(lambda some: some == pid)[0]), "it is ours"
    assert f"process {pid}" not in outside_of(watch.inventory(lambda pid: False)[0])


def test_a_driver_without_errors_reports_none_and_links_are_named() -> None:
    watch = GpuWatch()
    for _ in range(3):
        for gpu in watch.inventory(lambda pid: True):
            assert gpu.fault is None
            assert "PCIe" in gpu.links or "NVLink" in gpu.links
