"""A driver that pretends: what an agent that finds this before the real module believes to be NVIDIA's library.

``PRETENDED_GPUS`` names a folder: ``gpus.json`` lists ``{"uuid", "lost", "ecc"}``, with ``model`` and ``memory_mib`` for those
that are not all alike, and each file ``xid-*`` is one error, ``<index> <code>``, removed once it was delivered. All other
questions are "not supported", as on many devices.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FOLDER = Path(os.environ["PRETENDED_GPUS"])
MEMORY_MIB = 8192

nvmlEventTypeXidCriticalError = 8  # noqa: N816 - named after what it plays, like all that follows


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801, N818
    pass


class NVMLError_DriverNotLoaded(NVMLError):  # noqa: N801, N818
    pass


def __getattr__(name: str) -> Any:
    if name.startswith("NVML_"):
        return 0
    if not name.startswith("nvml"):
        raise AttributeError(name)

    def not_supported(*_args: object) -> None:
        raise NVMLError(f"{name}: Not Supported")

    return not_supported


def devices() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "gpus.json").read_text())
    return found


def nvmlInit() -> None:
    pass


def nvmlShutdown() -> None:
    pass


def nvmlDeviceGetCount() -> int:
    return len(devices())


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    if devices()[index]["lost"]:
        raise NVMLError("GPU is lost")
    return index


def nvmlDeviceGetUUID(handle: int) -> str:
    return str(devices()[handle]["uuid"])


def nvmlDeviceGetName(handle: int) -> str:
    return str(devices()[handle].get("model", "Pretended GPU"))


def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:
    return SimpleNamespace(total=devices()[handle].get("memory_mib", MEMORY_MIB) * 2**20, used=0)


def nvmlDeviceGetTotalEccErrors(handle: int, _kind: int, _counter: int) -> int:
    return int(devices()[handle]["ecc"])


def nvmlEventSetCreate() -> str:
    return "events"


def nvmlDeviceRegisterEvents(_handle: int, _kinds: int, _events: str) -> None:
    pass


def nvmlEventSetWait_v2(_events: str, _milliseconds: int) -> SimpleNamespace:
    for file in sorted(FOLDER.glob("xid-*")):
        index, code = (int(word) for word in file.read_text().split())
        file.unlink()
        return SimpleNamespace(eventType=nvmlEventTypeXidCriticalError, eventData=code, device=index)
    raise NVMLError("Timeout")
