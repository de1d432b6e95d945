"""Debian packages that tests need, and installing them."""

import os
import shutil
import subprocess
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path


class Need(StrEnum):
    SERVERS = "servers"
    ENGINE = "engine"
    NAMESPACES = "namespaces"
    BUBBLEWRAP = "bubblewrap"
    CHROMIUM = "chromium"
    GPU = "gpu"


PACKAGES: dict[Need, dict[str, str]] = {
    Need.SERVERS: {"/usr/lib/postgresql": "postgresql", "redis-server": "redis-server"},
    Need.ENGINE: {
        "dockerd": "docker.io",
        "docker-registry": "docker-registry",
        "setpriv": "util-linux",
        "iptables": "iptables",
        "debootstrap": "debootstrap",
        "g++": "g++",
        "cmake": "cmake",
    },
    Need.NAMESPACES: {
        "setpriv": "util-linux",
        "nsenter": "util-linux",
        "ip": "iproute2",
        "cc": "gcc",
    },
    Need.BUBBLEWRAP: {
        "bwrap": "bubblewrap",
        "setpriv": "util-linux",
        "git": "git",
        "ssh": "openssh-client",
        "/usr/sbin/sshd": "openssh-server",
        "git-lfs": "git-lfs",
    },
    Need.CHROMIUM: {
        "chromium": "chromium",
        "/usr/share/fonts/truetype/dejavu": "fonts-dejavu-core",
        "node": "nodejs",
    },
    Need.GPU: {"/proc/driver/nvidia/version": ""},
}
"""A program or path that a need looks for -> the Debian package that has it; none for what cannot be installed."""


class MissingError(Exception):
    """What cannot be installed here, with what to do about it."""


def missing_packages(needs: Collection[Need]) -> list[str]:
    """Debian packages to install. MissingError when something is missing that no package has."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    wanted = {program: package for need in sorted(needs) for program, package in PACKAGES[need].items()}
    absent = {
        program: package
        for program, package in wanted.items()
        if not (Path(program).exists() if program.startswith("/") else shutil.which(program, path=path))
    }
    if impossible := [program for program, package in absent.items() if not package]:
        raise MissingError(f"{', '.join(impossible)} is missing, and no package can bring it")
    return list(dict.fromkeys(absent.values()))


def install(packages: Collection[str]) -> None:
    """Install Debian packages as root or by passwordless sudo. MissingError when that fails."""
    by_hand = f"install these packages: {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        raise MissingError(by_hand)
    sudo: list[str] = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if sudo and (
        shutil.which("sudo") is None or subprocess.run([*sudo, "true"], capture_output=True, check=False).returncode
    ):
        raise MissingError(f"not root: {by_hand}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages],
    ):
        run = subprocess.run([*sudo, *command], env=env, capture_output=True, text=True, check=False)
        if run.returncode:
            raise MissingError(f"{' '.join(command)} failed: {run.stderr.strip()[-300:]}")


def provide(needs: Collection[Need]) -> None:
    """Install what is missing, and print what. For benches and other programs that need it. MissingError otherwise."""
    if missing := missing_packages(needs):
        print(f"Installing Debian packages: {' '.join(missing)}", flush=True)
        install(missing)
