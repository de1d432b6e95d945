"""The devices of a node: its CUDA devices by NVML, or CPU slots on a machine that has none."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeVar

import pynvml

from runners.messages import Message
from runners.messages.gpus import DividedByMig, LostByDriver, MemoryErrors, NoAnswer, PagesToRetire, TooHot, WornOut
from runners.messages.problems import DriverAway, Problem

Answer = TypeVar("Answer")

MAX_MODEL = 80
MIG_MARK = " MIG "
"""In the name of an instance, as the driver and the portal have it."""
TOO_HOT_CELSIUS = 100
"""No data-centre device becomes this hot while its cooling works; NVIDIA's slow-down temperatures are lower."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One schedulable device, in the shape of the agent's report."""

    uuid: str
    index: int
    kind: Literal["cuda", "cpu"]
    model: str
    memory_mib: int = 0
    healthy: bool = True
    problem: Message | None = None
    utilisation_percent: int | None = None
    memory_used_mib: int | None = None
    temperature_celsius: int | None = None
    links: str = ""
    """Its links to the other GPUs: ``NVLink to GPU 1, 2; PCIe 5.0 x16``."""
    outside: Message | None = None
    """The processes on it outside the portal, if there are any."""
    fault: Message | None = None
    """The last grave error that the driver reported, with its time: the portal takes the GPU out of use for it."""
    device: int | None = None
    """The driver's index of the device, which differs from ``index`` where MIG has divided one; not in reports."""
    part: int | None = None
    """The number of a MIG instance on its device."""

    def to_json(self) -> dict[str, Any]:
        """Return the device as reports have it. Portals of the previous release read the texts."""
        report = asdict(replace(self, problem=None, fault=None, outside=None))
        del report["device"], report["part"]
        for name, key in (("problem", "message"), ("fault", "fault_message"), ("outside", "outside_message")):
            message = getattr(self, name)
            report |= {name: message.text if message else "", key: message.data() if message else None}
        return report


def inventory() -> list[Gpu]:
    """Return the machine's GPUs; without any (or if SCHEDULEARN_CPU_SLOTS is set) its CPU slots."""
    if os.environ.get("SCHEDULEARN_CPU_SLOTS"):
        return cpu_slots()
    if driver_problem():
        return []  # a GPU machine with a broken driver must not turn into a CPU machine
    return cuda_devices() or cpu_slots()


def driver_problem(nvml: Any = pynvml) -> Problem | None:
    """Return the problem of a driver that is installed and does not work. A machine without a driver has none."""
    try:
        nvml.nvmlInit()
        try:
            nvml.nvmlDeviceGetCount()
        finally:
            nvml.nvmlShutdown()
    except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
        return None
    except nvml.NVMLError as error:
        return DriverAway(str(error))
    return None


def cpu_slots(count: int | None = None) -> list[Gpu]:
    """Return CPU slots, each for one rank; by default as many as the machine has processors."""
    if count is None:
        wanted = os.environ.get("SCHEDULEARN_CPU_SLOTS", "")
        if wanted and not (wanted.isdecimal() and 1 <= int(wanted) <= 1024):
            raise ValueError(f"SCHEDULEARN_CPU_SLOTS must be a whole number from 1 to 1024, not {wanted!r}.")
        count = int(wanted) if wanted else os.cpu_count() or 1
    return [Gpu(uuid=f"cpu-{index}", index=index, kind="cpu", model="CPU slot") for index in range(count)]


def driver_facts(nvml: Any = pynvml) -> dict[str, Any]:
    """Return the versions of the driver and of CUDA; empty without a working driver."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return {}
    try:
        cuda = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
        return {
            "driver": as_text(nvml.nvmlSystemGetDriverVersion()),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
    except nvml.NVMLError:
        return {}
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def cuda_devices(nvml: Any = pynvml) -> list[Gpu]:
    """Return the CUDA devices; none without NVIDIA's driver. A device that answers no query is listed as unhealthy.

    One that MIG has divided is listed as its instances, each a GPU of its own.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        found: list[Gpu] = []
        for device in range(nvml.nvmlDeviceGetCount()):
            gpu = read_device(nvml, device)
            found += read_mig_instances(nvml, gpu) or [gpu]
        return [replace(gpu, index=index) for index, gpu in enumerate(found)]
    except nvml.NVMLError:
        return []
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def read_mig_instances(nvml: Any, gpu: Gpu) -> list[Gpu]:
    """Return the MIG instances of a device; none where MIG is off, or has not divided it yet.

    An instance has the health and the temperature of its device. The driver reports no utilisation of instances.
    """
    if gpu.problem is not None and not isinstance(gpu.problem, DividedByMig):
        return []
    found = []
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(gpu.device)
        if not is_mig_on(_ask(nvml, nvml.nvmlDeviceGetMigMode, handle)):
            return []
        for part in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            instance = _ask(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, part)
            uuid = None if instance is None else _ask(nvml, nvml.nvmlDeviceGetUUID, instance)
            if uuid is None:
                continue
            memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, instance)
            problem = None if memory else NoAnswer()
            found.append(
                replace(
                    gpu,
                    uuid=as_text(uuid),
                    model=_instance_name(nvml, instance, gpu.model, memory.total if memory else 0),
                    memory_mib=memory.total // 2**20 if memory else 0,
                    memory_used_mib=memory.used // 2**20 if memory else None,
                    utilisation_percent=None,
                    healthy=not problem,
                    problem=problem,
                    part=part,
                )
            )
    except nvml.NVMLError:
        return []
    return found


def _instance_name(nvml: Any, instance: Any, model: str, memory: int) -> str:
    """Return the name of an instance: that of its device, " MIG " and its profile, such as ``1g.5gb``."""
    name = as_text(_ask(nvml, nvml.nvmlDeviceGetName, instance) or "")
    profile = name.partition(MIG_MARK)[2] or f"{-(-memory // 2**30)}gb"
    return f"{model[: MAX_MODEL - len(MIG_MARK) - len(profile)]}{MIG_MARK}{profile}"


def _ask(nvml: Any, query: Callable[..., Answer], *args: Any) -> Answer | None:
    """Query the driver; None for a query that the device does not support, as is common."""
    try:
        return query(*args)
    except nvml.NVMLError:
        return None


def read_device(nvml: Any, index: int) -> Gpu:
    def ask(query: Callable[..., Answer], *args: Any) -> Answer | None:
        return _ask(nvml, query, *args)

    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = as_text(nvml.nvmlDeviceGetUUID(handle))
    except nvml.NVMLError as error:
        # Lost from the bus: without a UUID no job can get it, but the page should show it.
        problem: Message | None = LostByDriver(str(error))
        return Gpu(f"gpu-{index}", index, "cuda", "unknown", healthy=False, problem=problem, device=index)
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    rates = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
    temperature = ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
    errors = ask(
        nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    )
    problem = health_problem(
        answers=memory is not None,
        uncorrected_errors=errors or 0,
        pending_rows=bool(ask(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)),
        failed_rows=has_failed_rows(ask(nvml.nvmlDeviceGetRemappedRows, handle)),
        temperature_celsius=temperature,
        mig=is_mig_on(ask(nvml.nvmlDeviceGetMigMode, handle)),
    )
    return Gpu(
        uuid=uuid,
        index=index,
        kind="cuda",
        model=as_text(ask(nvml.nvmlDeviceGetName, handle) or "unknown")[:MAX_MODEL],
        memory_mib=memory.total // 2**20 if memory else 0,
        healthy=not problem,
        problem=problem,
        utilisation_percent=rates.gpu if rates else None,
        memory_used_mib=memory.used // 2**20 if memory else None,
        temperature_celsius=temperature,
        device=index,
    )


def health_problem(
    answers: bool,
    uncorrected_errors: int,
    pending_rows: bool,
    failed_rows: bool,
    temperature_celsius: int | None,
    mig: bool,
) -> Message | None:
    """Return why nothing should run on a device; None when it is healthy."""
    if not answers:
        return NoAnswer()
    if failed_rows:
        return WornOut()
    if uncorrected_errors:
        return MemoryErrors(uncorrected_errors)
    if pending_rows:
        return PagesToRetire()
    if temperature_celsius is not None and temperature_celsius >= TOO_HOT_CELSIUS:
        return TooHot(temperature_celsius)
    if mig:
        return DividedByMig()
    return None


def as_text(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def has_failed_rows(rows: Any) -> bool:
    """Whether the remapping of a row failed; ``rows``: (corrected, uncorrected, pending, failed)."""
    return bool(rows and len(rows) >= 4 and rows[3])


def is_mig_on(modes: Any) -> bool:
    """Whether MIG is on; ``modes``: (current, after the next reset)."""
    return bool(modes and modes[0])
