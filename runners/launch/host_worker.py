"""What a host's supervisor runs without a driver: a plain command, or torchrun over fixed hosts."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

from runners.launch import network
from runners.launch.files import ContainerPaths, Control, write_json
from runners.launch.log_writer import LogWriter
from runners.launch.processes import Exit, Processes
from runners.launch.ranks import NOTICE_FILE, processors, rank_env, torchrun_argv, with_python
from runners.launch.shell import shell_argv
from runners.messages import Message
from runners.messages.launch import Running
from runners.spec import RunSpec

NOT_FOUND_CODE = 127
NOT_EXECUTABLE_CODE = 126
"""The exit codes of a shell for these cases."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a container ended; the content of exit.json."""

    code: int
    reason: str
    message: Message | None = None

    @property
    def detail(self) -> str:
        """Return the message as text, empty without one."""
        return self.message.text if self.message else ""

    def to_json(self) -> dict[str, Any]:
        """Return the content of exit.json. Agents of the previous release read ``detail``."""
        content = {"code": self.code, "reason": self.reason, "detail": self.detail}
        return content | {"message": self.message.data()} if self.message else content


@dataclass
class WorkerContext:
    """What every kind of worker needs."""

    spec: RunSpec
    paths: ContainerPaths
    control: Control
    logs: LogWriter
    processes: Processes
    inherited: Mapping[str, str]
    secrets: Mapping[str, str] = field(default_factory=dict)
    """The secrets of the job that ranks have as variables."""
    pumps: list[Thread] = field(default_factory=list)
    ending: str = ""
    """The coming exit reason, once this container ends its ranks itself: "stopped" or "fenced"."""

    def env(self) -> dict[str, str]:
        return rank_env(self.spec, self.paths, self.inherited, self.secrets)

    def announce_stop(self, reason: str, seconds: float) -> None:
        """Announce to the ranks that they are about to be stopped."""
        notice = {"reason": reason, "grace_seconds": seconds, "until": time.time() + seconds}
        try:
            write_json(self.paths.scribe / NOTICE_FILE, notice)
        except OSError:
            pass  # the notice is optional; SIGTERM follows

    def remove_notice(self) -> None:
        """Remove the notice for ranks that are restarted."""
        (self.paths.scribe / NOTICE_FILE).unlink(missing_ok=True)

    def start_rank(self, slot: int, env: Mapping[str, str]) -> int:
        """Start the job's command as the rank in this slot: see ``start``."""
        return self.start(str(slot), str(slot), self.spec.command, env, slot)

    def pin_to_processors(self, pid: int, slot: int) -> None:
        """Bind the rank in this slot to its processors, if it has some of its own."""
        if bound := processors(self.spec, slot, os.sched_getaffinity(0)):
            with contextlib.suppress(
                OSError, OverflowError
            ):  # without a process of this id the rank may use any processor
                os.sched_setaffinity(pid, bound)

    def start(
        self, key: str, stream: str, argv: tuple[str, ...], env: Mapping[str, str], slot: int | None = None
    ) -> int:
        """Start a program; return 0, or the exit code for one that could not be started, which is reported to the user.

        ``slot`` is that of the rank, if the program is one.
        """
        argv = with_python(argv)
        try:
            pid, output = self.processes.start(key, argv, env, self.paths.workspace)
        except (OSError, ValueError, IndexError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self.logs.report(f"“{argv[0] if argv else ''}” could not be started: {why}. Check the job's command.")
            return NOT_FOUND_CODE if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE_CODE
        if slot is not None:
            self.pin_to_processors(pid, slot)
        self.pumps.append(self.logs.pump(output, stream))
        return 0


class HostWorker(Protocol):
    """What a supervisor runs on its host, and how it ends."""

    phase: Message
    """What it does, for status.json."""

    def begin(self) -> None:
        """Start what can be started immediately."""

    def tick(self) -> None:
        """Do what is due. Called after every event and at least twice a second."""

    def record_exit(self, exit: Exit) -> None:
        """Record that one of our processes has ended."""

    def verdict(self) -> Verdict | None:
        """Return how the worker ended, None while it runs."""

    def can_delay_sigterm(self) -> bool:
        """Whether ranks may leave by themselves, so that SIGTERM can be sent later."""

    def close(self) -> None:
        """Close everything that keeps a stream open."""


class CommandWorker:
    """Runs the command once, with all GPUs of the container."""

    phase: Message = Running()

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self._code: int | None = None

    def begin(self) -> None:
        context = self.context
        context.logs.label("0", "rank 0")
        context.logs.report(f"Starting {context.spec.command_line}")
        if failed := context.start("0", "0", shell_argv(context.spec.command), context.env()):
            self._code = failed

    def tick(self) -> None: ...

    def record_exit(self, exit: Exit) -> None:
        self._code = exit.code
        self.context.logs.report_exit(f"The command ended with exit code {exit.code}", "0")

    def verdict(self) -> Verdict | None:
        return None if self._code is None else Verdict(self._code, "exited")

    def can_delay_sigterm(self) -> bool:
        return False

    def close(self) -> None: ...


class TorchrunWorker:
    """Runs torchrun, which starts this host's ranks. The output of each comes through its own named pipe."""

    phase: Message = Running()

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self._code: int | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="streams-"))
        self._pipe_handles: list[int] = []
        self._unlabelled = set(range(context.spec.slots))

    def begin(self) -> None:
        context, spec = self.context, self.context.spec
        hosts = len(context.control.hosts) or _host_count(spec)
        if not hosts:
            self._code = NOT_EXECUTABLE_CODE
            context.logs.report("The number of hosts is not known, so torchrun cannot start")
            return
        endpoint, address, interface = self._rendezvous_endpoint()
        for slot in range(spec.slots):
            context.logs.label(str(slot), f"rank {slot}" if hosts == 1 else f"{spec.hostname}, local rank {slot}")
            pump, held = context.logs.listen(self._folder / str(slot), str(slot))
            context.pumps.append(pump)
            self._pipe_handles.append(held)
        ranks = "1 rank" if spec.slots == 1 else f"{spec.slots} ranks"
        context.logs.report(f"Starting {ranks} of {' '.join(spec.command)} with torchrun on {spec.hostname}")
        if hosts > 1:
            context.logs.report("Waiting for the other hosts")
        env = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface, **context.env()}
        argv = torchrun_argv(spec, hosts, endpoint, address, self._folder)
        if failed := context.start("torchrun", "setup", argv, env):
            self._code = failed

    def _rendezvous_endpoint(self) -> tuple[str, str, str]:
        """Return the endpoint, our own address and its interface."""
        group = self.context.spec.collective
        if group is None:
            return "127.0.0.1:0", "127.0.0.1", "lo"
        endpoint = f"{group.driver_host}:{group.port}"
        try:
            address = network.own_address_towards(group.driver_host, group.port)
            return endpoint, address, network.interface_of(address)
        except OSError:  # the first host's name is not known yet; torchrun waits for it
            return endpoint, self.context.spec.hostname, "eth0"

    def tick(self) -> None:
        for slot in list(self._unlabelled):
            try:
                rank, pid = (int(word) for word in (self._folder / f"rank.{slot}").read_bytes()[:32].split())
            except (OSError, ValueError):
                continue
            self._unlabelled.discard(slot)
            self.context.pin_to_processors(pid, slot)
            self.context.logs.label(str(slot), f"rank {rank}")

    def record_exit(self, exit: Exit) -> None:
        self._code = exit.code
        self.tick()
        self.context.logs.report_exit(f"torchrun ended with exit code {exit.code}", "setup")

    def verdict(self) -> Verdict | None:
        return None if self._code is None else Verdict(self._code, "exited")

    def can_delay_sigterm(self) -> bool:
        return False

    def close(self) -> None:
        for handle in self._pipe_handles:
            os.close(handle)
        self._pipe_handles.clear()
        shutil.rmtree(self._folder, ignore_errors=True)


def _host_count(spec: RunSpec) -> int:
    """Return how many equal hosts the job has; 0 when that is unknown."""
    if spec.collective is None:
        return 1
    hosts, rest = divmod(spec.collective.max_ranks, max(1, spec.slots))
    return 0 if rest else hosts
