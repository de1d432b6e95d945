"""Builds on nodes with Docker: a container of the base image without a network, with the same proxy as in bubblewrap."""

import time
from dataclasses import dataclass
from pathlib import Path

from runners.environments.docker_images import DockerImages
from runners.environments.layers.sandbox import (
    CPU_WEIGHT,
    MAX_PROCESSES,
    TEMPORARY_MIB,
    Command,
    build_owner,
    entry_command,
    give_socket,
    make_homes,
    memory_mib,
    watched,
)
from runners.environments.preparing import PrepareError, ProgramError, read_tail
from runners.messages.builds import OverBuildMemory
from runners.runtimes.confinement import MIB
from runners.runtimes.control_groups import USUAL_CPU_WEIGHT, USUAL_SHARES

POLL_SECONDS = 0.5
CPU_SHARES = CPU_WEIGHT * USUAL_SHARES // USUAL_CPU_WEIGHT

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

    def run(self, command: Command) -> None:
        work, log = command.work, command.log
        owner = build_owner(work)
        make_homes(work, owner)
        give_socket(command.socket, owner)
        log.touch()
        memory = memory_mib()
        options = {
            "user": owner.user,
            "working_dir": str(work),
            "environment": command.variables,
            "tmpfs": {"/tmp": f"rw,nosuid,nodev,mode=1777,size={TEMPORARY_MIB}m"},  # noqa: S108  the container's own
            "mem_limit": memory * MIB,
            "memswap_limit": memory * MIB,
            "pids_limit": MAX_PROCESSES,
            "cpu_shares": CPU_SHARES,
        }
        mounts = {path: (str(path), path == work) for path in (*command.readable, work)}
        covered = [name for name in CLOSED if any(path.is_relative_to(name) for path in mounts)]
        mounts = {cover_for(work, name): (name, True) for name in covered} | mounts
        if command.accounts is not None:
            mounts[command.accounts] = ("/etc/passwd", False)
        check = watched(command)
        began = time.monotonic()
        # The engine counts processes and memory, also without an own user id.
        argv = entry_command(self.python, False, command)
        with self.images.confined(self.image, argv, mounts, log, options) as exit_of:
            while (end := exit_of()) is None:
                time.sleep(POLL_SECONDS)
                check(time.monotonic() - began, read_tail(log))
        if end.code and end.out_of_memory:
            raise PrepareError(OverBuildMemory(memory))
        if end.code:
            raise ProgramError(read_tail(log))
