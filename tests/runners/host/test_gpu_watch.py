"""Errors, strangers and links of GPUs, against a driver that is played."""

import os
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from runners.host import gpus, processes
from runners.host.gpu_watch import GpuWatch
from runners.host.gpus import Gpu, cuda_devices
from runners.messages.gpus import LostAt, Process, Processes, UncorrectedErrors, XidError
from tests.runners.host.test_gpus import A100, Driver, NVMLError

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class Watched(Driver):
    """A driver that also queues events and lists processes."""

    nvmlEventTypeXidCriticalError = 8  # noqa: N815 - named after what it plays
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0

    def __init__(self, *devices: dict[str, Any]) -> None:
        super().__init__(*devices)
        self.events: list[tuple[dict[str, Any], int]] = []
        self.registered: list[str] = []

    def nvmlEventSetCreate(self) -> str:
        return "set"

    def nvmlDeviceRegisterEvents(self, device: dict[str, Any], kinds: int, events: str) -> None:
        self.registered.append(device["uuid"])

    def nvmlEventSetWait_v2(self, events: str, milliseconds: int) -> Any:
        assert milliseconds == 0  # a look must not wait
        if not self.events:
            raise NVMLError("Timeout")
        device, code = self.events.pop(0)
        return SimpleNamespace(device=device, eventType=8, eventData=code)

    def nvmlDeviceGetComputeRunningProcesses(self, device: dict[str, Any]) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in device.get("processes", ())]

    def nvmlDeviceGetP2PStatus(self, one: dict[str, Any], other: dict[str, Any], kind: int) -> int:
        return 0 if other["uuid"] in one.get("near", ()) else 1

    def nvmlDeviceGetMaxPcieLinkGeneration(self, device: dict[str, Any]) -> Any:
        return self.answer(device, "pcie")

    def nvmlDeviceGetMaxPcieLinkWidth(self, device: dict[str, Any]) -> Any:
        return 16


def watch_of(driver: Watched, monkeypatch: pytest.MonkeyPatch) -> GpuWatch:
    monkeypatch.setattr(gpus, "inventory", lambda: cuda_devices(driver))
    return GpuWatch(driver, lambda: NOON)


def look(watch: GpuWatch, ours: set[int] | None = None) -> list[Gpu]:
    return watch.inventory(lambda pid: pid in (ours or set()))


def test_a_grave_error_is_kept_with_its_time_and_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Watched(dict(A100), {**A100, "uuid": "GPU-2"})
    watch = watch_of(driver, monkeypatch)
    assert [gpu.fault for gpu in look(watch)] == [None, None]
    assert driver.registered == ["GPU-1", "GPU-2"]
    driver.events.append((driver.devices[1], 79))
    for _ in range(2):  # it is still reported when asked again
        first, second = look(watch)
        assert first.fault is None and second.fault == XidError(79, NOON.isoformat())
        assert second.fault.text == "XID 79 (it has fallen off the bus) at 2026-11-21 12:00:00 UTC"
    assert driver.registered == ["GPU-1", "GPU-2"]


@pytest.mark.parametrize("code", [13, 31, 43, 45, 63])
def test_what_a_program_did_to_itself_is_no_fault_of_the_device(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Watched(dict(A100))
    watch = watch_of(driver, monkeypatch)
    driver.events.append((driver.devices[0], code))
    assert look(watch)[0].fault is None and not driver.events


def test_memory_errors_are_a_fault_each_time_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    device = {**A100, "ecc": 1}
    watch = watch_of(Watched(device), monkeypatch)
    assert look(watch)[0].fault == UncorrectedErrors(1)
    device["ecc"] = 3
    assert look(watch)[0].fault == UncorrectedErrors(3)


def test_a_device_that_is_lost_is_still_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    device = dict(A100)
    watch = watch_of(Watched(device), monkeypatch)
    look(watch)
    device["lost"] = True
    (gpu,) = look(watch)
    assert gpu.uuid == "GPU-1" and not gpu.healthy
    assert gpu.fault == LostAt(NOON.isoformat())
    device["lost"] = False
    (gpu,) = look(watch)
    assert gpu.healthy and gpu.fault == LostAt(NOON.isoformat())  # until an admin gives it back


def test_a_process_outside_the_portal_is_named_and_ours_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.getpid()
    watch = watch_of(Watched({**A100, "processes": [me, 2**22 + 1]}), monkeypatch)  # the other one has ended
    (gpu,) = look(watch)
    name = processes.name_of(me)
    assert name is not None and gpu.outside == Processes((Process(name, me),), 0)
    assert look(watch, {me})[0].outside is None


def test_of_many_processes_some_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "name_of", lambda pid: "python")
    (gpu,) = look(watch_of(Watched({**A100, "processes": [9, 8, 7, 6, 5]}), monkeypatch))
    assert gpu.outside == Processes((Process("python", 5), Process("python", 6), Process("python", 7)), 2)


def test_links_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {**A100, "near": ["GPU-2"], "pcie": 5}
    first, second = look(watch_of(Watched(one, {**A100, "uuid": "GPU-2"}), monkeypatch))
    assert first.links == "NVLink to GPU 1; PCIe 5.0 x16" and second.links == ""


def test_a_driver_that_stops_answering_spoils_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Watched(dict(A100))
    watch = watch_of(driver, monkeypatch)
    monkeypatch.setattr(gpus, "inventory", lambda: [Gpu("GPU-1", 0, "cuda", "A100")])
    driver.start = NVMLError("gone")
    assert [gpu.uuid for gpu in look(watch)] == ["GPU-1"]
