"""Checks whether an engine is fit for other people's code: pure functions of ``docker info`` and ``docker version``."""

from collections.abc import Mapping
from typing import Any

from runners.host.checks import containerd_problem, envvar_problem, runc_problem, toolkit_problem, version_numbers
from runners.messages.problems import (
    GpusOutOfReach,
    NoLimits,
    NoLiveRestore,
    NoSeccomp,
    NoSwapLimit,
    NvidiaByDefault,
    OldEngine,
    Problem,
    RootlessEngine,
    UserNamespaces,
)

MIN_API = (1, 41)
"""Docker 20.10."""


def problems(info: dict[str, Any], version: dict[str, Any], packages: Mapping[str, str] | None = None) -> list[Problem]:
    """Return the problems in the order in which an admin should fix them. ``packages`` are those that the machine's package
    manager has installed."""
    parts, packages = components(version), packages or {}
    options = " ".join(info.get("SecurityOptions") or [])
    found = [
        version_problem(version),
        namespace_problem(options),
        seccomp_problem(options),
        *limit_problems(info),
        live_restore_problem(info),
        default_runtime_problem(info),
        runc_problem(parts.get("runc", ""), packages.get("runc", "")),
        containerd_problem(packages.get("containerd", "") or parts.get("containerd", "")),
    ]
    return [problem for problem in found if problem is not None]


def version_problem(version: dict[str, Any]) -> Problem | None:
    if version_numbers(version.get("ApiVersion") or "0") >= MIN_API and version.get("Os", "linux") == "linux":
        return None
    return OldEngine(str(version.get("Version", "")))


def namespace_problem(options: str) -> Problem | None:
    """Check for engines that map user ids: a job could not write to its folders there."""
    if "name=rootless" in options:
        return RootlessEngine()
    return UserNamespaces() if "name=userns" in options else None


def seccomp_problem(options: str) -> Problem | None:
    if "name=seccomp" in options and "unconfined" not in options:
        return None
    return NoSeccomp()


def limit_problems(info: dict[str, Any]) -> list[Problem | None]:
    needed = {"MemoryLimit": "memory", "PidsLimit": "processes", "CpuCfsQuota": "processors"}
    missing = tuple(word for key, word in needed.items() if not info.get(key))
    return [NoLimits(missing) if missing else None, None if info.get("SwapLimit") else NoSwapLimit()]


def live_restore_problem(info: dict[str, Any]) -> Problem | None:
    if info.get("LiveRestoreEnabled"):
        return None
    return NoLiveRestore()


def default_runtime_problem(info: dict[str, Any]) -> Problem | None:
    if info.get("DefaultRuntime") != "nvidia":
        return None
    return NvidiaByDefault()


def components(version: dict[str, Any]) -> dict[str, str]:
    """Return the engine's parts with their versions: ``{"runc": "1.2.8", "containerd": "1.7.29"}``."""
    return {str(part.get("Name")): str(part.get("Version", "")) for part in version.get("Components") or []}


def gpu_problems(
    info: dict[str, Any], cuda_devices: int, packages: Mapping[str, str], config: Mapping[str, Any] | None
) -> list[Problem]:
    """Return the problems of a machine with GPUs. ``config`` is that of NVIDIA's container runtime."""
    if cuda_devices == 0:
        return []
    found = [
        gpu_problem(info, cuda_devices),
        toolkit_problem(packages.get("nvidia-container-toolkit", "")),
        envvar_problem(config, by_cdi=bool(info.get("DiscoveredDevices"))),
    ]
    return [problem for problem in found if problem is not None]


def gpu_problem(info: dict[str, Any], cuda_devices: int) -> Problem | None:
    """Check for GPUs that NVML lists but that containers cannot get."""
    runtimes = info.get("Runtimes") or {}
    if cuda_devices == 0 or "nvidia" in runtimes or info.get("DiscoveredDevices"):
        return None
    return GpusOutOfReach()


def facts(info: dict[str, Any], version: dict[str, Any]) -> dict[str, Any]:
    parts = components(version)
    return {
        "runc": parts.get("runc", ""),
        "containerd": parts.get("containerd", ""),
        "live_restore": bool(info.get("LiveRestoreEnabled")),
        "default_runtime": info.get("DefaultRuntime", ""),
        "nvidia_runtime": "nvidia" in (info.get("Runtimes") or {}) or bool(info.get("DiscoveredDevices")),
        "engine": f"Docker {info.get('ServerVersion', '')}".strip(),
        "system": info.get("OperatingSystem", ""),
        "kernel": info.get("KernelVersion", ""),
        "cpus": info.get("NCPU") or 0,
        "memory_mib": int(info.get("MemTotal") or 0) // 2**20,
        "storage": info.get("Driver", ""),
        "engine_folder": info.get("DockerRootDir", ""),
        "cgroup": f"v{info.get('CgroupVersion') or 1}",
    }
