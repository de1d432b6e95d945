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


def container_options(work: Path, read_only: Sequence[Path], env: Mapping[str, str], owner: Owner) -> dict[str, Any]:
    """Return what a build may do on this machine: write to ``work``, and read the rest that it is given."""
    binds: list[Any] = [
        {
            "Type": "bind",
            "Source": str(path),
            "Target": str(path),
            "ReadOnly": path != work,
            "BindOptions": {"Propagation": "rprivate"},
        }
        for path in dict.fromkeys((*read_only, work))
    ]
    return {
        "entrypoint": [],
        "working_dir": str(work),
        "environment": dict(env),
        "user": owner.user,
        "network_mode": "none",
        "mounts": binds,
        "read_only": True,
        "tmpfs": {
            "/tmp": f"rw,nosuid,nodev,mode=1777,size={TEMPORARY_MIB}m",  # noqa: S108  the container's own
            # Above the folders that are mounted: the image's own are closed to other users than root.
            **dict.fromkeys(("/root", "/home"), "rw,nosuid,nodev,mode=755,size=1m"),
        },
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": MAX_PROCESSES,
        "cpu_shares": 256,  # builds yield the processors to jobs
        "oom_score_adj": 600,
        "ipc_mode": "private",
        "labels": {LABEL: str(int(time.time()))},
        "log_config": {"Type": "json-file", "Config": {"max-size": "16m", "max-file": "1"}},
    }
