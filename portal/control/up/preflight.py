"""What would stop the start, said at once and with the mend."""

import fcntl
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LEAST_FREE_MIB = 512
"""Below this even the database could not grow."""
IMAGE_FREE_MIB = 8 * 1024
"""A job image with PyTorch is 1.5 GB; building it needs several times that."""


@dataclass(frozen=True)
class Finding:
    """Something that is missing. ``fatal`` means that nothing can start."""

    text: str
    mend: str
    fatal: bool = False


class AlreadyRunning(Exception):  # noqa: N818
    """Another ``up`` holds this home."""


def lock_home(home: Path) -> IO[str]:
    """One ``up`` per home. The lock lives as long as the returned file is open."""
    file = (home / "up.lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise AlreadyRunning from error
    return file


def findings(home: Path, host: str, port: int) -> list[Finding]:
    return [*port_findings(host, port), *space_findings(home), *compiler_findings()]


def port_findings(host: str, port: int) -> list[Finding]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return [
                Finding(
                    f"Port {port} cannot be used ({error.strerror}).",
                    f"Choose another: make run PORT={port + 1 if port < 65535 else 8000}",
                    fatal=True,
                )
            ]
    return []


def space_findings(home: Path) -> list[Finding]:
    free = shutil.disk_usage(home).free // 2**20
    if free < LEAST_FREE_MIB:
        return [
            Finding(
                f"Only {free} MiB are free at {home}.", "Free some space, or choose another SCHEDULEARN_HOME.", True
            )
        ]
    if free < IMAGE_FREE_MIB:
        return [
            Finding(
                f"Only {free / 1024:.1f} GiB are free at {home}; preparing a job environment may need {IMAGE_FREE_MIB // 1024}.",
                "Free some space before submitting jobs with PyTorch.",
            )
        ]
    return []


def compiler_findings() -> list[Finding]:
    """Horovod is compiled once. The Docker image brings its own compiler; without an engine we need this machine's."""
    if docker_socket_answers() or shutil.which("g++") or shutil.which("c++"):
        return []
    return [
        Finding(
            "There is no C++ compiler, so Horovod cannot be built for jobs that run as processes of this machine.",
            "On Debian or Ubuntu: apt-get install g++ cmake. Or start a Docker Engine. Plain PyTorch jobs work without.",
        )
    ]


def docker_socket_answers() -> bool:
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not address.startswith("unix://"):
        return True  # the agent will find out; looking over the network would delay the start
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(address.removeprefix("unix://"))
        except OSError:
            return False
    return True
