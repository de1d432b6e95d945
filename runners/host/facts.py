"""Facts of this machine: its packages, NVIDIA's settings, and the address under which other nodes reach it."""

import json
import subprocess
import time
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from runners.host import gpus
from runners.host.overlay import node_address

PACKAGES = ("runc", "containerd", "containerd.io", "docker.io", "docker-ce", "nvidia-container-toolkit")
NVIDIA_CONFIG = Path("/etc/nvidia-container-runtime/config.toml")
COMMAND_SECONDS = 10
CACHE_SECONDS = 600.0
"""How long the list of packages is cached, because reading it starts a program."""

_cache: dict[str, tuple[float, dict[str, Any]]] = {}


def _cached(name: str, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    at, value = _cache.get(name, (0.0, {}))
    now = time.monotonic()
    if not at or now - at > CACHE_SECONDS:
        value = ask()
        _cache[name] = (now, value)
    return value


def package_facts() -> dict[str, Any]:
    """Return the relevant packages of dpkg or rpm, as in ``{"packages": {"runc": "1.1.5+ds1-1+deb12u1"}}``."""
    return _cached("packages", lambda: {"packages": _packages()})


def _packages() -> dict[str, str]:
    for command, pattern in (
        (("dpkg-query", "-W", "-f", "${Package} ${Version}\n"), PACKAGES),
        (("rpm", "-q", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\n"), PACKAGES),
    ):
        lines = [line.split() for line in _output_of((*command, *pattern)).splitlines()]
        if found := {line[0]: line[1] for line in lines if len(line) == 2 and line[0] in PACKAGES}:
            return found
    return {}


def nvidia_facts() -> dict[str, Any]:
    """Return the driver's version, and whether containers may take GPUs by a variable; empty without a GPU."""
    facts = dict(gpus.driver_facts())
    if not facts:
        return {}
    config = nvidia_config()
    if config is not None:
        key = "accept-nvidia-visible-devices-envvar-when-unprivileged"
        facts["gpus_by_variable"] = config.get(key) is not False
    return facts


def nvidia_config() -> dict[str, Any] | None:
    try:
        return tomllib.loads(NVIDIA_CONFIG.read_text())
    except (OSError, ValueError):
        return None


def network_facts(url: str, overlay_address: str) -> dict[str, Any]:
    """Return the address under which other nodes reach this one, and its interface."""
    try:
        address = node_address(url, overlay_address)
    except ValueError:
        address = ""
    return {"address": address, "interface": interface_of(address)} if address else {}


@cache
def interface_of(address: str) -> str:
    try:
        rows = json.loads(_output_of(("ip", "-json", "-4", "address", "show")) or "[]")
    except ValueError:
        return ""
    for row in rows:
        if any(info.get("local") == address for info in row.get("addr_info", ())):
            return str(row.get("ifname", ""))
    return ""


def _output_of(command: tuple[str, ...]) -> str:
    """Return what a program prints, even if it fails; empty when it is not installed."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
