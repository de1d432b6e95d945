"""The sandbox for builds on a node with a Docker Engine: a container of the base's image, without a network.

It has the same paths inside and outside, as the other sandboxes have, and reaches the hosts of the build's proxy through the
same socket (``sandbox.py``).
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.environments.docker_images import DockerImages
from runners.environments.installing import Tick, report_nothing
from runners.environments.layers.sandbox import (
    INSIDE,
    MAX_PROCESSES,
    TEMPORARY_MIB,
    NetworkAccess,
    build_owner,
    entry_command,
    give_socket,
    make_homes,
    process_environment,
    watched,
)
from runners.environments.preparing import TICK_SECONDS, ProgramError, read_tail
from runners.runtimes.docker import APIError, NotFound, engine_calls
from runners.runtimes.host_config import Owner

LABEL = "schedulearn.build"
CLOSED = ("/root", "/home")
"""Folders above the agent's files that exist in images, too, with other rights."""
LEFT_SECONDS = 3600.0
"""A container that has ended for so long was left by an agent that was killed."""
READ_AHEAD_SECONDS = 10.0
"""How long the last output of a command that has ended is waited for."""


@dataclass(frozen=True)
class ContainerSandbox:
    """Containers of one image, each for one command. ``python`` is the interpreter in the image."""

    engine: DockerImages
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
        sockets = (network.socket.parent,) if network else ()
        config = container_options(work, (INSIDE, *sockets, *read_only), process_environment(work, env), owner)
        check = watched(work, log, tick, seconds)
        command = entry_command(self.python, True, network, argv)
        with engine_calls(), self._container(command, config) as container:
            began = time.monotonic()
            code = self._follow(container, log, lambda: check(time.monotonic() - began, read_tail(log)))
        if code != 0:
            raise ProgramError(read_tail(log))

    @contextmanager
    def _container(self, command: Sequence[str], options: Mapping[str, Any]) -> Iterator[Any]:
        self._remove_left_ones()
        container = self.engine.client.containers.create(self.image, list(command), **options)
        try:
            container.start()
            yield container
        finally:
            with suppress(NotFound):
                container.remove(force=True, v=True)

    def _follow(self, container: Any, log: Path, check: Any) -> int:
        """Write a container's output to the end of ``log`` until it ends, and return its exit code."""
        copier = threading.Thread(target=copy_output, args=(container, log), name="build output", daemon=True)
        copier.start()
        while True:
            container.reload()
            if container.status == "exited":
                break
            check()
            time.sleep(TICK_SECONDS)
        copier.join(READ_AHEAD_SECONDS)
        return int(container.attrs["State"]["ExitCode"])

    def _remove_left_ones(self) -> None:
        """Remove containers that an agent left when it was killed."""
        for container in self.engine.client.containers.list(all=True, filters={"label": LABEL, "status": "exited"}):
            began = float(container.labels.get(LABEL) or 0)
            if began < time.time() - LEFT_SECONDS:
                with suppress(APIError):
                    container.remove(force=True, v=True)


def copy_output(container: Any, log: Path) -> None:
    with log.open("ab") as file, suppress(Exception):  # the engine ends the stream when the container is removed
        for piece in container.logs(stream=True, follow=True):
            file.write(piece)
            file.flush()


def cover_for(work: Path, name: str) -> Path:
    """Return a folder that is mounted in the place of one that images close to other users than root. It belongs to root, so
    that the build cannot write there; the engine makes the places for the other mounts in it."""
    folder = work.with_name(f"{work.name}{name.replace('/', '.')}")
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    return folder


def container_options(work: Path, read_only: Sequence[Path], env: Mapping[str, str], owner: Owner) -> dict[str, Any]:
    """Return what a build may do on this machine: write to ``work``, and read the rest that it is given."""
    paths = tuple(dict.fromkeys((*read_only, work)))
    covers = [
        (cover_for(work, name), Path(name)) for name in CLOSED if any(path.is_relative_to(name) for path in paths)
    ]
    binds: list[Any] = [
        {
            "Type": "bind",
            "Source": str(source),
            "Target": str(target),
            "ReadOnly": target in read_only,
            "BindOptions": {"Propagation": "rprivate"},
        }
        for source, target in (*covers, *zip(paths, paths, strict=True))
    ]
    return {
        "entrypoint": [],
        "working_dir": str(work),
        "environment": dict(env),
        "user": owner.user,
        "network_mode": "none",
        "mounts": binds,
        "read_only": True,
        "tmpfs": {"/tmp": f"rw,nosuid,nodev,mode=1777,size={TEMPORARY_MIB}m"},  # noqa: S108  the container's own
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": MAX_PROCESSES,
        "cpu_shares": 256,  # builds yield the processors to jobs
        "oom_score_adj": 600,
        "ipc_mode": "private",
        "labels": {LABEL: str(int(time.time()))},
        "log_config": {"Type": "json-file", "Config": {"max-size": "16m", "max-file": "1"}},
    }
