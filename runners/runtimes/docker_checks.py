"""Checks whether an engine is fit for other people's code: pure functions of ``docker info`` and ``docker version``."""

from collections.abc import Mapping
from typing import Any

from runners.host.checks import containerd_problem, envvar_problem, numbers, runc_problem, toolkit_problem
from runners.runtime import Problem

MIN_API = (1, 41)
"""Docker 20.10."""


def no_engine(why: str) -> Problem:
    return Problem(
        f"No Docker Engine can be used: {why}",
        "Install Docker Engine and start it, let the agent's user reach its socket (group docker), or set DOCKER_HOST.",
        blocking=True,
    )


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
    if numbers(version.get("ApiVersion") or "0") >= MIN_API and version.get("Os", "linux") == "linux":
        return None
    return Problem(
        f"The Docker Engine is too old or not for Linux ({version.get('Version', 'unknown version')}).",
        "Install Docker Engine 20.10 or newer for Linux.",
        blocking=True,
    )


def namespace_problem(options: str) -> Problem | None:
    """Check for engines that map user ids: a job could not write to its folders there."""
    for mark, what in (("name=rootless", "runs rootless"), ("name=userns", "maps user ids (userns-remap)")):
        if mark in options:
            return Problem(
                f"The Docker Engine {what}: jobs could not write to their folders.",
                "Use an ordinary engine for this node: jobs run without root and without capabilities in it.",
                blocking=True,
            )
    return None


def seccomp_problem(options: str) -> Problem | None:
    if "name=seccomp" in options and "unconfined" not in options:
        return None
    return Problem(
        "The Docker Engine runs containers without its seccomp filter.",
        'Remove "seccomp-profile": "unconfined" from daemon.json, or use a kernel with seccomp, and restart the engine.',
        blocking=True,
    )


def limit_problems(info: dict[str, Any]) -> list[Problem | None]:
    fix = "Enable the cgroup controllers memory, cpu and pids (or cgroup v2) on this machine and restart the engine."
    needed = {"MemoryLimit": "memory", "PidsLimit": "processes", "CpuCfsQuota": "processors"}
    missing = [word for key, word in needed.items() if not info.get(key)]
    found: list[Problem | None] = []
    if missing:
        text = f"The Docker Engine cannot limit a container's {' and '.join(missing)}."
        found.append(Problem(text, fix, blocking=True))
    if not info.get("SwapLimit"):
        found.append(
            Problem(
                "The Docker Engine cannot limit swap: a job over its memory limit may slow the machine down.",
                "Turn swap off, or boot with swapaccount=1.",
            )
        )
    return found


def live_restore_problem(info: dict[str, Any]) -> Problem | None:
    if info.get("LiveRestoreEnabled"):
        return None
    return Problem(
        "Every job on this node dies when the Docker Engine is restarted or upgraded.",
        'Put {"live-restore": true} into /etc/docker/daemon.json and reload the engine (systemctl reload docker).',
    )


def default_runtime_problem(info: dict[str, Any]) -> Problem | None:
    if info.get("DefaultRuntime") != "nvidia":
        return None
    return Problem(
        "NVIDIA's runtime is the engine's default: a container may see GPUs it was not given.",
        "Set the default runtime back to runc, and accept-nvidia-visible-devices-envvar-when-unprivileged = false in "
        "/etc/nvidia-container-runtime/config.toml.",
        blocking=True,
    )


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
    return Problem(
        "This machine has GPUs, but its Docker Engine cannot give them to containers.",
        "Install NVIDIA Container Toolkit, then run: nvidia-ctk runtime configure && systemctl restart docker",
        blocking=True,
    )


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
        "cgroup": f"v{info.get('CgroupVersion') or 1}",
    }
