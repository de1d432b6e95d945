"""What a node has to offer: its CUDA devices by NVML, or CPU slots on a machine that has none."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

import pynvml

from runners.runtime import Problem

Answer = TypeVar("Answer")

TOO_HOT_CELSIUS = 100
"""No data-centre device runs this hot with its cooling intact; NVIDIA's slow-down points lie below."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One schedulable device, in the shape of the agent's report."""

    uuid: str
    index: int
    kind: Literal["cuda", "cpu"]
    model: str
    memory_mib: int = 0
    healthy: bool = True
    problem: str = ""
    utilisation_percent: int | None = None
    memory_used_mib: int | None = None
    temperature_celsius: int | None = None
    links: str = ""
    """How it reaches the others: ``NVLink to GPU 1, 2; PCIe 5.0 x16``."""
    outside: str = ""
    """Who computes on it without the portal: ``python, process 4711``. Empty when nobody does."""
    fault: str = ""
    """The last grave error that the driver told of, with its time: the portal takes the GPU out of use for it."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def inventory() -> list[Gpu]:
    """The machine's GPUs; without any (or when SCHEDULEARN_CPU_SLOTS asks for them) its CPU slots."""
    if os.environ.get("SCHEDULEARN_CPU_SLOTS"):
        return cpu_slots()
    if driver_problem():
        return []  # a GPU machine with a broken driver must not turn into a CPU machine
    return cuda_devices() or cpu_slots()


def driver_problem(nvml: Any = pynvml) -> Problem | None:
    """A driver that is there and does not work. No driver at all is no problem."""
    try:
        nvml.nvmlInit()
        try:
            nvml.nvmlDeviceGetCount()
        finally:
            nvml.nvmlShutdown()
    except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
        return None
    except nvml.NVMLError as error:
        return Problem(
            f"NVIDIA's driver does not answer ({error}): no GPU of this machine can be offered.",
            "Reboot after a driver update, and see that nvidia-smi works for the agent's user.",
            blocking=True,
        )
    return None


def cpu_slots(count: int | None = None) -> list[Gpu]:
    """Places for one rank each, named as what they are."""
    if count is None:
        wanted = os.environ.get("SCHEDULEARN_CPU_SLOTS", "")
        if wanted and not (wanted.isdecimal() and 1 <= int(wanted) <= 1024):
            raise ValueError(f"SCHEDULEARN_CPU_SLOTS must be a whole number from 1 to 1024, not {wanted!r}.")
        count = int(wanted) if wanted else os.cpu_count() or 1
    return [Gpu(uuid=f"cpu-{index}", index=index, kind="cpu", model="CPU slot") for index in range(count)]


def driver_facts(nvml: Any = pynvml) -> dict[str, Any]:
    """Versions of the driver and of CUDA; empty without a driver that works."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return {}
    try:
        cuda = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
        return {
            "driver": words(nvml.nvmlSystemGetDriverVersion()),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
    except nvml.NVMLError:
        return {}
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def cuda_devices(nvml: Any = pynvml) -> list[Gpu]:
    """Empty on a machine without NVIDIA's driver. A device that answers no question is listed as unhealthy."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        return [device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return []
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def device(nvml: Any, index: int) -> Gpu:
    def ask(question: Callable[..., Answer], *args: Any) -> Answer | None:
        """Many devices do not support one question or another."""
        try:
            return question(*args)
        except nvml.NVMLError:
            return None

    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = words(nvml.nvmlDeviceGetUUID(handle))
    except nvml.NVMLError as error:
        # Lost from the bus: without a UUID it cannot be given to anybody, but the page should show it.
        return Gpu(f"gpu-{index}", index, "cuda", "unknown", healthy=False, problem=f"The driver has lost it: {error}")
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    rates = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
    temperature = ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
    errors = ask(
        nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    )
    problem = health(
        answers=memory is not None,
        uncorrected_errors=errors or 0,
        pending_rows=bool(ask(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)),
        failed_rows=failed_rows(ask(nvml.nvmlDeviceGetRemappedRows, handle)),
        temperature_celsius=temperature,
        mig=mig_is_on(ask(nvml.nvmlDeviceGetMigMode, handle)),
    )
    return Gpu(
        uuid=uuid,
        index=index,
        kind="cuda",
        model=words(ask(nvml.nvmlDeviceGetName, handle) or "unknown")[:80],
        memory_mib=memory.total // 2**20 if memory else 0,
        healthy=not problem,
        problem=problem,
        utilisation_percent=rates.gpu if rates else None,
        memory_used_mib=memory.used // 2**20 if memory else None,
        temperature_celsius=temperature,
    )


def health(
    answers: bool,
    uncorrected_errors: int,
    pending_rows: bool,
    failed_rows: bool,
    temperature_celsius: int | None,
    mig: bool,
) -> str:
    """Why nothing should run on it, in one sentence; empty when it is fit."""
    if not answers:
        return "It does not answer the driver."
    if failed_rows:
        return "Its memory is worn out (row remapping failed): have it replaced."
    if uncorrected_errors:
        return f"{uncorrected_errors} memory errors could not be corrected since the driver was loaded: reset it or reboot."
    if pending_rows:
        return "Bad memory pages wait to be retired: reset it or reboot."
    if temperature_celsius is not None and temperature_celsius >= TOO_HOT_CELSIUS:
        return f"It is {temperature_celsius} °C hot: look after its cooling."
    if mig:
        return "It is divided by MIG, which Schedulearn does not schedule: turn MIG off."
    return ""


def words(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def failed_rows(rows: Any) -> bool:
    """(corrected, uncorrected, pending, failed)"""
    return bool(rows and len(rows) >= 4 and rows[3])


def mig_is_on(modes: Any) -> bool:
    """(current, after the next reset)"""
    return bool(modes and modes[0])
