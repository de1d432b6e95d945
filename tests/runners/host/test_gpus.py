"""The inventory, against a driver that is played."""

from types import SimpleNamespace
from typing import Any

import pytest

from runners.host import gpus
from runners.host.gpus import cpu_slots, cuda_devices, driver_problem, health_problem
from runners.messages.gpus import NoAnswer


class NVMLError(Exception):
    pass


class LibraryMissing(NVMLError):  # noqa: N818 - named after what it plays
    pass


class DriverMissing(NVMLError):  # noqa: N818
    pass


class Driver:
    """As much of pynvml as the inventory asks, with devices as dictionaries."""

    NVMLError = NVMLError
    NVMLError_LibraryNotFound = LibraryMissing
    NVMLError_DriverNotLoaded = DriverMissing
    NVML_TEMPERATURE_GPU = NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = 0

    def __init__(
        self, *devices: dict[str, Any], start: Exception | None = None, count: Exception | None = None
    ) -> None:
        self.devices = devices
        self.start = start
        self.count = count
        self.shut = False

    def nvmlInit(self) -> None:
        if self.start:
            raise self.start

    def nvmlShutdown(self) -> None:
        self.shut = True

    def nvmlDeviceGetCount(self) -> int:
        if self.count:
            raise self.count
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        if self.devices[index].get("lost"):
            raise NVMLError("GPU is lost")
        return self.devices[index]

    def answer(self, device: dict[str, Any], key: str) -> Any:
        if key not in device:
            raise NVMLError("Not Supported")
        return device[key]

    def nvmlDeviceGetUUID(self, device: dict[str, Any]) -> Any:
        return self.answer(device, "uuid")

    def nvmlDeviceGetName(self, device: dict[str, Any]) -> Any:
        return self.answer(device, "name")

    def nvmlDeviceGetMemoryInfo(self, device: dict[str, Any]) -> Any:
        return SimpleNamespace(total=self.answer(device, "total"), used=device.get("used", 0))

    def nvmlDeviceGetUtilizationRates(self, device: dict[str, Any]) -> Any:
        return SimpleNamespace(gpu=self.answer(device, "busy"))

    def nvmlDeviceGetTemperature(self, device: dict[str, Any], sensor: int) -> Any:
        return self.answer(device, "celsius")

    def nvmlDeviceGetTotalEccErrors(self, device: dict[str, Any], kind: int, counter: int) -> Any:
        return self.answer(device, "ecc")

    def nvmlDeviceGetRetiredPagesPendingStatus(self, device: dict[str, Any]) -> Any:
        return self.answer(device, "pending")

    def nvmlDeviceGetRemappedRows(self, device: dict[str, Any]) -> Any:
        return self.answer(device, "rows")

    def nvmlDeviceGetMigMode(self, device: dict[str, Any]) -> Any:
        return self.answer(device, "mig")

    def nvmlDeviceGetMaxMigDeviceCount(self, device: dict[str, Any]) -> Any:
        return len(self.answer(device, "instances"))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: dict[str, Any], part: int) -> Any:
        instance = device["instances"][part]
        if instance is None:
            raise NVMLError("Not Found")
        return instance


A100 = {
    "uuid": "GPU-1",
    "name": b"NVIDIA A100",
    "total": 80 * 2**30,
    "used": 2**30,
    "busy": 93,
    "celsius": 61,
    "ecc": 0,
    "pending": 0,
    "rows": (0, 0, 0, 0),
    "mig": (0, 0),
}


def test_it_lists_each_device_with_what_it_does() -> None:
    driver = Driver(A100)
    (gpu,) = cuda_devices(driver)
    assert (gpu.uuid, gpu.kind, gpu.model, gpu.memory_mib) == ("GPU-1", "cuda", "NVIDIA A100", 81_920)
    assert (gpu.healthy, gpu.utilisation_percent, gpu.memory_used_mib, gpu.temperature_celsius) == (True, 93, 1024, 61)
    assert driver.shut


def test_a_device_that_supports_few_questions_is_healthy() -> None:
    (gpu,) = cuda_devices(Driver({"uuid": "GPU-1", "total": 2**30}))
    assert gpu.healthy and gpu.utilisation_percent is None and gpu.temperature_celsius is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ecc": 3}, "3 memory errors"),
        ({"pending": 1}, "waiting to be retired"),
        ({"rows": (1, 2, 0, 1)}, "worn out"),
        ({"celsius": 104}, "104 °C"),
        ({"mig": (1, 1)}, "MIG"),
        ({"lost": True}, "lost"),
    ],
)
def test_an_unhealthy_device_has_a_reason(change: dict[str, Any], words: str) -> None:
    sick, well = cuda_devices(Driver({**A100, **change}, {**A100, "uuid": "GPU-2"}))
    assert not sick.healthy and sick.problem and words in sick.problem.text
    assert well.healthy


SLICES = [
    {"uuid": "MIG-1", "name": "NVIDIA A100 MIG 3g.20gb", "total": 20 * 2**30, "used": 2**30},
    None,
    {"uuid": b"MIG-2", "name": b"NVIDIA A100 MIG 1g.5gb", "total": 4_864 * 2**20},
]
DIVIDED = {**A100, "mig": (1, 1), "instances": SLICES}


def test_mig_instances_are_gpus_of_their_own() -> None:
    first, large, small, last = cuda_devices(Driver(A100, {**DIVIDED, "uuid": "GPU-2"}, {**A100, "uuid": "GPU-3"}))
    assert [gpu.index for gpu in (first, large, small, last)] == [0, 1, 2, 3]
    assert [gpu.device for gpu in (first, large, small, last)] == [0, 1, 1, 2]
    assert (large.uuid, large.model, large.memory_mib) == ("MIG-1", "NVIDIA A100 MIG 3g.20gb", 20 * 1024)
    assert (small.uuid, small.model, small.memory_mib) == ("MIG-2", "NVIDIA A100 MIG 1g.5gb", 4_864)
    assert large.healthy and large.memory_used_mib == 1024 and large.temperature_celsius == 61
    assert large.utilisation_percent is None, "the driver reports none of instances"
    assert {"device", "part"}.isdisjoint(large.to_json()), "portals of the release before know no such fields"


def test_an_instance_without_a_name_is_called_after_its_memory() -> None:
    nameless = {**DIVIDED, "instances": [{"uuid": "MIG-1", "total": 9_984 * 2**20}]}
    (gpu,) = cuda_devices(Driver(nameless))
    assert gpu.model == "NVIDIA A100 MIG 10gb"


@pytest.mark.parametrize("instances", [[], [None, None]])
def test_a_device_without_instances_has_a_problem_with_advice(instances: list[None]) -> None:
    (gpu,) = cuda_devices(Driver({**DIVIDED, "instances": instances}))
    assert not gpu.healthy and gpu.problem and "no instances" in gpu.problem.text


def test_instances_of_a_sick_device_are_not_offered() -> None:
    (gpu,) = cuda_devices(Driver({**DIVIDED, "ecc": 3}))
    assert not gpu.healthy and gpu.uuid == "GPU-1"


def test_a_device_without_an_answer_about_memory_is_unfit() -> None:
    assert health_problem(False, 0, False, False, None, False) == NoAnswer()


@pytest.mark.parametrize("error", [LibraryMissing(), DriverMissing()])
def test_no_driver_is_no_problem(error: Exception) -> None:
    driver = Driver(start=error)
    assert cuda_devices(driver) == [] and driver_problem(driver) is None


@pytest.mark.parametrize("question", ["start", "count"])
def test_a_broken_driver_does_not_turn_the_machine_into_a_cpu_machine(
    question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCHEDULEARN_CPU_SLOTS", raising=False)
    problem = driver_problem(Driver(**{question: NVMLError("Driver/library version mismatch")}))
    assert problem is not None and problem.blocking and "mismatch" in problem.text
    monkeypatch.setattr(gpus, "driver_problem", lambda: problem)
    assert gpus.inventory() == []


def test_cpu_slots_are_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDULEARN_CPU_SLOTS", "3")
    slots = gpus.inventory()
    assert [slot.uuid for slot in slots] == ["cpu-0", "cpu-1", "cpu-2"]
    assert {(slot.kind, slot.model) for slot in slots} == {("cpu", "CPU slot")}


@pytest.mark.parametrize("nonsense", ["0", "-1", "many", "1.5", "99999"])
def test_a_nonsense_number_of_slots_is_refused(nonsense: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDULEARN_CPU_SLOTS", nonsense)
    with pytest.raises(ValueError, match="SCHEDULEARN_CPU_SLOTS"):
        cpu_slots()
