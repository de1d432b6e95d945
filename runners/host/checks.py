"""Is this machine fit, apart from its engine? Pure: from installed packages, NVIDIA's settings, clock and disk.

A distribution mends holes without changing the upstream number, so packages are compared with the ones that are
known to be mended; only what no distribution made is judged by its number.
"""

import re
from collections.abc import Mapping
from functools import cmp_to_key
from typing import Any

from runners.runtime import Problem

LEAST_RUNC = (1, 1, 12)
"""Closes CVE-2024-21626: a container's first process could begin in a folder of the host."""
MENDED_RUNC = (
    ("1.0.0~rc93+ds1-5+deb11u", "1.0.0~rc93+ds1-5+deb11u3"),
    ("1.1.5+ds1-1", "1.1.5+ds1-1+deb12u1"),
    ("1.1.7-0ubuntu1~20.04.", "1.1.7-0ubuntu1~20.04.2"),
    ("1.1.7-0ubuntu1~22.04.", "1.1.7-0ubuntu1~22.04.2"),
)
"""Packages of distributions by how their version begins, with the first of each that has it closed too."""
SAFE_RUNC = {(1, 2): 8, (1, 3): 3}
"""Least patch release by series with the container escapes of 2025 closed; newer series have them closed."""
SAFE_CONTAINERD = {(1, 7): 29, (2, 0): 7, (2, 1): 5}
LEAST_TOOLKIT = (1, 17, 8)
"""Closes CVE-2025-23266: an image could load a library of its own into NVIDIA's hook, which is root."""
MOST_CLOCK_SECONDS = 5.0
LEAST_DISK_MIB = 10 * 1024

DISTRIBUTED = re.compile(r"deb|ubuntu|ds\d|el\d|fc\d|~")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[-+~]", version)[0]))


# --- versions of Debian's packages -------------------------------------------------------------------------------


def compare(left: str, right: str) -> int:
    """Negative, zero or positive, as dpkg orders versions: epoch, upstream version, revision."""
    for one, other in zip(_parts(left), _parts(right), strict=True):
        if (order := _compare_part(one, other)) != 0:
            return order
    return 0


def _parts(version: str) -> tuple[str, str, str]:
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, dash, revision = rest.rpartition("-")
    return (epoch, upstream, revision) if dash else (epoch, rest, "0")


def _compare_part(left: str, right: str) -> int:
    while left or right:
        for pattern, is_number in ((r"\D*", False), (r"\d*", True)):
            one, other = _head(pattern, left), _head(pattern, right)
            left, right = left[len(one) :], right[len(other) :]
            order = int(one or 0) - int(other or 0) if is_number else _compare_words(one, other)
            if order:
                return order
    return 0


def _head(pattern: str, text: str) -> str:
    found = re.match(pattern, text)
    return found.group() if found else ""


def _compare_words(left: str, right: str) -> int:
    """A tilde before the end, the end before letters, letters before everything else."""

    def weights(text: str) -> list[int]:
        return [-1 if char == "~" else ord(char) if char.isalpha() else ord(char) + 256 for char in text] + [0]

    one, other = weights(left), weights(right)
    return (one > other) - (one < other)


order_of = cmp_to_key(compare)


# --- what is unfit -----------------------------------------------------------------------------------------------


def runc_problem(version: str, package: str = "") -> Problem | None:
    """``version`` as the engine says it, ``package`` as dpkg does when a distribution's runc is installed."""
    version = (package or version).removeprefix("v")
    held = numbers(version)
    if len(held) < 3:
        return None
    if DISTRIBUTED.search(version):
        mended = next((least for begins, least in MENDED_RUNC if version.startswith(begins)), None)
        safe = held[:3] >= LEAST_RUNC or (mended is not None and compare(version, mended) >= 0)
        # Without its package's version there is nothing to compare.
        return None if safe or not package else _old_runc(version)
    if held[:3] < LEAST_RUNC:
        return _old_runc(version)
    series = held[:2]
    if series > max(SAFE_RUNC) or (series in SAFE_RUNC and held[2] >= SAFE_RUNC[series]):
        return None
    return Problem(
        f"This runc ({version}) has known ways out of a container (CVE-2025-31133, -52565, -52881).",
        "Upgrade runc to 1.2.8, 1.3.3 or newer (a newer containerd.io or docker package brings it).",
    )


def _old_runc(version: str) -> Problem:
    return Problem(
        f"This runc ({version}) lets a container reach the files of the machine (CVE-2024-21626).",
        "Upgrade the packages of this machine: runc 1.1.12 or newer, or one that your distribution has mended.",
        blocking=True,
    )


def containerd_problem(version: str) -> Problem | None:
    version = version.removeprefix("v")
    held = numbers(version)
    if len(held) < 3 or DISTRIBUTED.search(version):
        return None
    series = held[:2]
    if series > max(SAFE_CONTAINERD) or (series in SAFE_CONTAINERD and held[2] >= SAFE_CONTAINERD[series]):
        return None
    return Problem(
        f"This containerd ({version}) lets users of the machine into folders of containers (CVE-2024-25621).",
        "Upgrade containerd to 1.7.29, 2.0.7, 2.1.5 or newer (package containerd.io).",
    )


def toolkit_problem(version: str) -> Problem | None:
    held = numbers(version)
    if len(held) < 3 or held[:3] >= LEAST_TOOLKIT:
        return None
    return Problem(
        f"This NVIDIA Container Toolkit ({version}) lets an image become root of the machine (CVE-2025-23266).",
        "Upgrade nvidia-container-toolkit to 1.17.8 or newer and restart the engine.",
        blocking=True,
    )


def envvar_problem(config: Mapping[str, Any] | None, by_cdi: bool) -> Problem | None:
    """NVIDIA's hook hands out whatever GPUs a container's own variable names, unless it is told not to.

    Our jobs never carry that variable, and the hook only sees those that were given GPUs; an engine without CDI needs
    the variable itself to give GPUs, so it is asked for only where GPUs come by CDI.
    """
    if config is None or not by_cdi or config.get("accept-nvidia-visible-devices-envvar-when-unprivileged") is False:
        return None
    return Problem(
        "Containers that others start on this engine may take any GPU by a variable of theirs.",
        "Set accept-nvidia-visible-devices-envvar-when-unprivileged = false in "
        "/etc/nvidia-container-runtime/config.toml.",
    )


def clock_problem(offset_seconds: float | None) -> Problem | None:
    if offset_seconds is None or abs(offset_seconds) <= MOST_CLOCK_SECONDS:
        return None
    way = "ahead of" if offset_seconds > 0 else "behind"
    return Problem(
        f"The clock of this machine is {abs(offset_seconds):.0f} s {way} the portal's: times in logs are wrong.",
        "Let it keep time by NTP (timedatectl set-ntp true, or chrony).",
    )


def disk_problem(free_mib: int, place: str) -> Problem | None:
    if free_mib >= LEAST_DISK_MIB:
        return None
    return Problem(
        f"Only {free_mib / 1024:.1f} GiB are free where the agent keeps its files ({place}).",
        "Free some space, or move AGENT_HOME to a larger disk: an environment alone takes about 8 GiB.",
    )
