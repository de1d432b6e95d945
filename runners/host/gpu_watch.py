"""Watches GPUs over time: grave errors as they happen, processes outside the portal, and the links between GPUs.

The driver queues its critical errors (XIDs) for programs that have registered; each call of ``inventory`` takes those that
have come since the last one. A process on a GPU is ours when the runtime knows it; any other runs outside the portal.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pynvml

from runners.host import gpus, processes
from runners.host.exclusive import ExclusiveSection
from runners.host.gpus import Gpu, as_text
from runners.messages import Message
from runners.messages.gpus import LostAt, Process, Processes, UncorrectedErrors, XidError

PROGRAM_ERRORS = frozenset({13, 31, 43, 45, 63, 68, 92, 109})
"""XIDs that a program causes by itself, or that only report something the device has already handled."""
DRIVER_SECONDS = 10.0
"""The longest wait of a thread while another one queries the driver, which may hang."""
MAX_EVENTS = 1000
"""The most events that one call takes: a device that reports errors without end must not delay the report."""
MAX_NAMED = 3
"""The maximum number of processes outside the portal that are named."""

IsOurs = Callable[[int], bool]


class GpuWatch:
    """Remembers what it has seen of this machine's GPUs. Safe to share between threads."""

    def __init__(self, nvml: Any = pynvml, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._nvml = nvml
        self._now = now
        self._section = ExclusiveSection("asking the driver about the GPUs")
        self._events: Any = None
        self._faults: dict[str, Message] = {}
        """The last grave error of each GPU, by UUID."""
        self._errors: dict[str, int] = {}
        """The uncorrected memory errors at the last count, by UUID."""
        self._lost: set[str] = set()
        self._links: dict[str, str] = {}
        self._uuids: dict[int, str] = {}
        """The UUIDs of devices by the driver's index: a device that has fallen off the bus no longer reports its own."""

    def inventory(self, is_ours: IsOurs) -> list[Gpu]:
        """Return the GPUs as ``gpus.inventory`` does, with their faults, links and processes outside the portal."""
        devices = gpus.inventory()
        if not any(gpu.kind == "cuda" for gpu in devices):
            return devices
        with self._section.enter(DRIVER_SECONDS), self._session() as works:
            if not works:
                return devices
            self._take_events()
            return [self._with_details(gpu, is_ours) for gpu in devices]

    @contextmanager
    def _session(self) -> Iterator[bool]:
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            yield False
            return
        try:
            yield True
        finally:
            with suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def _with_details(self, gpu: Gpu, is_ours: IsOurs) -> Gpu:
        nvml, device = self._nvml, gpu.index if gpu.device is None else gpu.device
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(device)
            uuid = as_text(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError:
            uuid = self._uuids.get(device, gpu.uuid)
            if uuid not in self._lost:
                self._lost.add(uuid)
                self._faults[uuid] = LostAt(self._timestamp())
            return replace(gpu, uuid=uuid, links=self._links.get(uuid, ""), fault=self._faults.get(uuid))
        self._uuids[device] = uuid
        self._lost.discard(uuid)
        if uuid not in self._links:
            self._links[uuid] = self._links_of(device, handle)
        self._count_errors(uuid, handle)
        return replace(
            gpu,
            links=self._links[uuid] if gpu.part is None else f"part of GPU {device}",
            outside=self._outside_processes(self._instance_or_device(handle, gpu), is_ours),
            fault=self._faults.get(uuid),
        )

    def _instance_or_device(self, handle: Any, gpu: Gpu) -> Any:
        """Return the handle whose processes are those of the GPU: of a MIG instance its own."""
        if gpu.part is None:
            return handle
        try:
            return self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, gpu.part)
        except self._nvml.NVMLError:
            return handle  # it is being changed; the device's processes include those of the instance

    # --- errors --------------------------------------------------------------------------------------------------

    def _take_events(self) -> None:
        nvml = self._nvml
        if self._events is None:
            self._register()
        for _ in range(MAX_EVENTS):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:
                return  # no event is waiting, or this driver reports none
            code = int(event.eventData)
            if event.eventType & nvml.nvmlEventTypeXidCriticalError and code not in PROGRAM_ERRORS:
                with suppress(nvml.NVMLError):
                    self._record_xid(as_text(nvml.nvmlDeviceGetUUID(event.device)), code)

    def _register(self) -> None:
        nvml = self._nvml
        with suppress(nvml.NVMLError):
            # This session stays open: when the last one closes, the driver forgets the registrations.
            nvml.nvmlInit()
            events = nvml.nvmlEventSetCreate()
            for index in range(nvml.nvmlDeviceGetCount()):
                with suppress(nvml.NVMLError):  # many consumer devices report no errors
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            self._events = events

    def _record_xid(self, uuid: str, code: int) -> None:
        self._faults[uuid] = XidError(code, self._timestamp())

    def _timestamp(self) -> str:
        return self._now().isoformat(timespec="seconds")

    def _count_errors(self, uuid: str, handle: Any) -> None:
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        except nvml.NVMLError:
            return
        if count and count > self._errors.get(uuid, 0):
            self._faults[uuid] = UncorrectedErrors(count)
        self._errors[uuid] = count

    # --- processes outside the portal -----------------------------------------------------------------------------------------------

    def _outside_processes(self, handle: Any, is_ours: IsOurs) -> Processes | None:
        nvml = self._nvml
        try:
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except nvml.NVMLError:
            return None
        named = [(pid, processes.name_of(pid)) for pid in sorted({int(entry.pid) for entry in running})]
        # A process without a name has ended since the driver was queried.
        found = [Process(name, pid) for pid, name in named if name is not None and not is_ours(pid)]
        return Processes(tuple(found[:MAX_NAMED]), max(0, len(found) - MAX_NAMED)) if found else None

    # --- links ---------------------------------------------------------------------------------------------------

    def _links_of(self, index: int, handle: Any) -> str:
        nvml = self._nvml
        near = []
        for other in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):
                if other != index:
                    there = nvml.nvmlDeviceGetHandleByIndex(other)
                    status = nvml.nvmlDeviceGetP2PStatus(handle, there, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
                    near += [str(other)] if status == nvml.NVML_P2P_STATUS_OK else []
        parts = [f"NVLink to GPU {', '.join(near)}"] if near else []
        with suppress(nvml.NVMLError):
            speed = int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
            parts.append(f"PCIe {speed}.0 x{int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))}")
        return "; ".join(parts)[:200]
