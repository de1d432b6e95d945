"""Checks whether this machine is fit, apart from its engine. Pure: from packages, NVIDIA's settings, clock and disk.

A distribution fixes vulnerabilities without changing the upstream version, so its packages are compared with versions that
are known to be fixed. Only packages that no distribution made are judged by their upstream version.
"""

import re
from collections.abc import Mapping
from typing import Any

from runners.messages.problems import (
    EscapableRunc,
    GpusByVariable,
    OldContainerd,
    OldRunc,
    OldToolkit,
    Problem,
    WrongClock,
)

MIN_RUNC = (1, 1, 12)
"""Closes CVE-2024-21626: a container's first process could begin in a folder of the host."""
FIXED_RUNC = (
    ("1.0.0~rc93+ds1-5+deb11u", "1.0.0~rc93+ds1-5+deb11u3"),
    ("1.1.5+ds1-1", "1.1.5+ds1-1+deb12u1"),
    ("1.1.7-0ubuntu1~20.04.", "1.1.7-0ubuntu1~20.04.2"),
    ("1.1.7-0ubuntu1~22.04.", "1.1.7-0ubuntu1~22.04.2"),
)
"""Packages of distributions: how their version begins, and the first version of each that closes it too."""
SAFE_RUNC = {(1, 2): 8, (1, 3): 3}
"""The first patch release of each series that closes the container escapes of 2025; newer series have them closed."""
SAFE_CONTAINERD = {(1, 7): 29, (2, 0): 7, (2, 1): 5}
MIN_TOOLKIT = (1, 17, 8)
"""Closes CVE-2025-23266: an image could load its own library into NVIDIA's hook, which runs as root."""
MAX_CLOCK_SECONDS = 5.0

DISTRIBUTION_VERSION = re.compile(r"deb|ubuntu|ds\d|el\d|fc\d|~")


def version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[-+~]", version)[0]))


# --- versions of Debian's packages -------------------------------------------------------------------------------


def compare_versions(left: str, right: str) -> int:
    """Compare two versions as dpkg does (epoch, upstream version, revision): negative, zero or positive."""
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
            one, other = _leading_match(pattern, left), _leading_match(pattern, right)
            left, right = left[len(one) :], right[len(other) :]
            order = int(one or 0) - int(other or 0) if is_number else _compare_text(one, other)
            if order:
                return order
    return 0


def _leading_match(pattern: str, text: str) -> str:
    found = re.match(pattern, text)
    return found.group() if found else ""


def _compare_text(left: str, right: str) -> int:
    """Compare non-digits: a tilde sorts before the end, the end before letters, letters before everything else."""

    def weights(text: str) -> list[int]:
        return [-1 if char == "~" else ord(char) if char.isalpha() else ord(char) + 256 for char in text] + [0]

    one, other = weights(left), weights(right)
    return (one > other) - (one < other)


# --- what is unfit -----------------------------------------------------------------------------------------------


def runc_problem(version: str, package: str = "") -> Problem | None:
    """Check runc: ``version`` as the engine reports it, ``package`` as dpkg does if a distribution's runc is installed."""
    version = (package or version).removeprefix("v")
    found = version_numbers(version)
    if len(found) < 3:
        return None
    if DISTRIBUTION_VERSION.search(version):
        fixed = next((first for begins, first in FIXED_RUNC if version.startswith(begins)), None)
        safe = found[:3] >= MIN_RUNC or (fixed is not None and compare_versions(version, fixed) >= 0)
        # Without its package's version there is nothing to compare.
        return None if safe or not package else OldRunc(version)
    if found[:3] < MIN_RUNC:
        return OldRunc(version)
    series = found[:2]
    if series > max(SAFE_RUNC) or (series in SAFE_RUNC and found[2] >= SAFE_RUNC[series]):
        return None
    return EscapableRunc(version)


def containerd_problem(version: str) -> Problem | None:
    version = version.removeprefix("v")
    found = version_numbers(version)
    if len(found) < 3 or DISTRIBUTION_VERSION.search(version):
        return None
    series = found[:2]
    if series > max(SAFE_CONTAINERD) or (series in SAFE_CONTAINERD and found[2] >= SAFE_CONTAINERD[series]):
        return None
    return OldContainerd(version)


def toolkit_problem(version: str) -> Problem | None:
    found = version_numbers(version)
    if len(found) < 3 or found[:3] >= MIN_TOOLKIT:
        return None
    return OldToolkit(version)


def envvar_problem(config: Mapping[str, Any] | None, by_cdi: bool) -> Problem | None:
    """Check that NVIDIA's hook does not give a container the GPUs that a variable of its own names.

    Our jobs never have that variable, and the hook only sees jobs that were given GPUs. An engine without CDI needs the
    variable itself to give GPUs, so this is checked only where GPUs are given by CDI.
    """
    if config is None or not by_cdi or config.get("accept-nvidia-visible-devices-envvar-when-unprivileged") is False:
        return None
    return GpusByVariable()


def clock_problem(offset_seconds: float | None) -> Problem | None:
    if offset_seconds is None or abs(offset_seconds) <= MAX_CLOCK_SECONDS:
        return None
    return WrongClock(round(offset_seconds))
