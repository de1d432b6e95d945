"""Builds on nodes with Docker: a container of the base image without a network, with the same proxy as in bubblewrap."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runners.environments.docker_images import DockerImages
from runners.environments.installing import Tick, report_nothing
from runners.environments.layers.sandbox import (
    INSIDE,
    MAX_PROCESSES,
    MIN_MEMORY,
    TEMPORARY_MIB,
    NetworkAccess,
    build_owner,
    entry_command,
    give_socket,
    make_homes,
    physical_memory,
    process_environment,
    watched,
)
from runners.environments.preparing import ProgramError, read_tail

POLL_SECONDS = 0.5
MEMORY_SHARE = 0.5
"""The part of the machine's memory that a build may use beside jobs."""
CPU_SHARES = 256
"""A quarter of what a job gets when both want the processors."""

CLOSED = ("/root", "/home")
"""Folders that images close to other users than root, and that an agent's own files are often in."""


def cover_for(work: Path, name: str) -> Path:
    """Return a folder for the place of a closed one. It belongs to root, so that the build cannot write there; the engine
    makes the places of the other mounts in it."""
    folder = work.with_name(f"{work.name}{name.replace('/', '.')}")
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    return folder


@dataclass(frozen=True)
class DockerSandbox:
    """A container of ``image``, whose interpreter is ``python``."""

    images: DockerImages
    image: str
    python: str

    confined = True

    def run(
        self,
        argv: Sequence[str | Path],
        work: Path,
        *,
        network: NetworkAccess | None = None,
        read_only: Sequence[Path] = (),
        env: Mapping[str, str],
        log: Path,
        tick: Tick = report_nothing,
        seconds: float = 3600,
    ) -> None:
        owner = build_owner(work)
        make_homes(work, owner)
        give_socket(network, owner)
        log.touch()
        sockets = [network.socket.parent] if network else []
        memory = max(MIN_MEMORY // 2, int(physical_memory() * MEMORY_SHARE))
        options = {
            "user": owner.user,
            "working_dir": str(work),
            "environment": process_environment(work, env),
            "tmpfs": {"/tmp": f"rw,nosuid,nodev,mode=1777,size={TEMPORARY_MIB}m"},  # noqa: S108  the container's own
            "mem_limit": memory,
            "memswap_limit": memory,
            "pids_limit": MAX_PROCESSES,
            "cpu_shares": CPU_SHARES,
        }
        mounts = {path: (str(path), path == work) for path in (INSIDE, *sockets, *read_only, work)}
        covered = [name for name in CLOSED if any(path.is_relative_to(name) for path in mounts)]
        mounts = {cover_for(work, name): (name, True) for name in covered} | mounts
        check = watched(work, log, tick, seconds)
        began = time.monotonic()
        # The engine counts processes and memory, also without an own user id.
        command = entry_command(self.python, False, network, argv)
        with self.images.confined(self.image, command, mounts, log, options) as exit_code:
            while (code := exit_code()) is None:
                time.sleep(POLL_SECONDS)
                check(time.monotonic() - began, read_tail(log))
        if code:
            raise ProgramError(read_tail(log))
