"""The interpreter for which packages are installed: this machine's, or that of a container image."""

import platform
import sys
from dataclasses import dataclass

OLDEST_GLIBC_MINOR = 5
"""manylinux1 is glibc 2.5."""


@dataclass(frozen=True, slots=True)
class Target:
    """An interpreter, its C library and processor, and whether the machine has CUDA devices."""

    python: str
    """``3.11``"""
    glibc: tuple[int, int]
    machine: str
    """``x86_64``"""
    cuda: bool = False

    @property
    def tags(self) -> list[str]:
        """The platforms whose wheels run there, the best first. pip matches each exactly."""
        new = [f"manylinux_2_{minor}_{self.machine}" for minor in range(self.glibc[1], OLDEST_GLIBC_MINOR - 1, -1)]
        return [*new, f"manylinux2014_{self.machine}", f"manylinux2010_{self.machine}", f"manylinux1_{self.machine}"]

    @property
    def key_text(self) -> str:
        glibc = ".".join(str(part) for part in self.glibc)
        return f"{self.python} {glibc} {self.machine} {'cuda' if self.cuda else 'cpu'}"


def this_machine(cuda: bool) -> Target:
    major, minor = sys.version_info[:2]
    return Target(f"{major}.{minor}", parse_glibc(platform.libc_ver()), platform.machine(), cuda)


def parse_glibc(libc: tuple[str, str]) -> tuple[int, int]:
    """Parse the version of glibc; (0, 0) without one (macOS, musl): such a machine prepares only for itself."""
    name, version = libc
    if name != "glibc":
        return (0, 0)
    first, second = version.split(".")[:2]
    return (int(first), int(second))


def cross_install_options(target: Target) -> list[str]:
    """Return pip's options for packages of another interpreter; none for our own."""
    if target == this_machine(target.cuda):
        return []
    platforms = [option for tag in target.tags for option in ("--platform", tag)]
    return ["--only-binary=:all:", "--implementation", "cp", "--python-version", target.python, *platforms]
