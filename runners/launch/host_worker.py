"""What a host's supervisor supervises when no driver leads it: a plain command, or torchrun over fixed hosts."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Protocol

from runners.launch import network
from runners.launch.files import ContainerPaths, Control, write_json
from runners.launch.processes import Exit, Processes
from runners.launch.ranks import NOTICE_FILE, processors, rank_env, torchrun_argv, with_python, with_shim
from runners.launch.scribe import Scribe
from runners.spec import RunSpec

NOT_FOUND_CODE = 127
NOT_EXECUTABLE_CODE = 126
"""As a shell says them."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a container ended; the content of exit.json."""

    code: int
    reason: str
    detail: str = ""


@dataclass
class WorkerContext:
    """What every kind of work needs at hand."""

    spec: RunSpec
    paths: ContainerPaths
    control: Control
    scribe: Scribe
    processes: Processes
    inherited: Mapping[str, str]
    pumps: list[Thread] = field(default_factory=list)
    ending: str = ""
    """The exit reason to come, once this container ends its ranks itself: "stopped" or "fenced"."""

    def env(self) -> dict[str, str]:
        return rank_env(self.spec, self.paths, self.inherited)

    def give_notice(self, reason: str, seconds: float) -> None:
        """Tells the ranks that they are about to be stopped."""
        notice = {"reason": reason, "grace_seconds": seconds, "until": time.time() + seconds}
        try:
            write_json(self.paths.scribe / NOTICE_FILE, notice)
        except OSError:
            pass  # a courtesy; SIGTERM says the same

    def take_notice_back(self) -> None:
        """For ranks that begin anew."""
        (self.paths.scribe / NOTICE_FILE).unlink(missing_ok=True)

    def start_rank(self, slot: int, env: Mapping[str, str]) -> int:
        """The job's command as the rank in this slot: see ``start``."""
        return self.start(str(slot), str(slot), self.spec.command, env, slot)

    def bind(self, pid: int, slot: int) -> None:
        """The rank in this slot to its own processors, if it is to keep to some."""
        if bound := processors(self.spec, slot, os.sched_getaffinity(0)):
            with contextlib.suppress(OSError, OverflowError):  # it has ended, or is no process: the rank runs on any
                os.sched_setaffinity(pid, bound)

    def start(
        self, key: str, stream: str, argv: tuple[str, ...], env: Mapping[str, str], slot: int | None = None
    ) -> int:
        """0, or the code that stands for a program that could not be started. Says so to the user.

        ``slot``: that of the rank, if it is one.
        """
        argv = with_python(argv)
        try:
            pid, output = self.processes.start(key, argv, env, self.paths.workspace)
        except (OSError, ValueError, IndexError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self.scribe.say(f"“{argv[0] if argv else ''}” could not be started: {why}. Check the job's command.")
            return NOT_FOUND_CODE if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE_CODE
        if slot is not None:
            self.bind(pid, slot)
        self.pumps.append(self.scribe.pump(output, stream))
        return 0


class HostWorker(Protocol):
    phase: str
    """One phrase for status.json."""

    def begin(self) -> None:
        """Start what can be started at once."""

    def turn(self) -> None:
        """Called after every event and at least twice a second."""

    def exited(self, exit: Exit) -> None:
        """One of our processes ended."""

    def verdict(self) -> Verdict | None:
        """None while the work goes on."""

    def stopping_can_wait(self) -> bool:
        """True while ranks may leave by themselves, so that SIGTERM need not come at once."""

    def close(self) -> None:
        """Let go of whatever still holds a stream open."""


class CommandWorker:
    """The command once, with all the container's GPUs."""

    phase = "running"

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self._code: int | None = None

    def begin(self) -> None:
        context = self.context
        context.scribe.label("0", "rank 0")
        context.scribe.say(f"Starting {' '.join(context.spec.command)}")
        if failed := context.start("0", "0", context.spec.command, context.env()):
            self._code = failed

    def turn(self) -> None: ...

    def exited(self, exit: Exit) -> None:
        self._code = exit.code
        self.context.scribe.say(f"The command ended with exit code {exit.code}")

    def verdict(self) -> Verdict | None:
        return None if self._code is None else Verdict(self._code, "exited")

    def stopping_can_wait(self) -> bool:
        return False

    def close(self) -> None: ...


class TorchrunWorker:
    """torchrun, which starts this host's ranks. Their output comes through one named pipe for each."""

    phase = "running"

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self._code: int | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="streams-"))
        self._held: list[int] = []
        self._unlabelled = set(range(context.spec.slots))

    def begin(self) -> None:
        context, spec = self.context, self.context.spec
        hosts = len(context.control.hosts) or _hosts_by_counting(spec)
        if not hosts:
            self._code = NOT_EXECUTABLE_CODE
            context.scribe.say("The number of hosts is not known, so torchrun cannot start")
            return
        endpoint, address, interface = self._meeting_point()
        for slot in range(spec.slots):
            context.scribe.label(str(slot), f"rank {slot}" if hosts == 1 else f"{spec.hostname}, local rank {slot}")
            pump, held = context.scribe.listen(self._folder / str(slot), str(slot))
            context.pumps.append(pump)
            self._held.append(held)
        ranks = "1 rank" if spec.slots == 1 else f"{spec.slots} ranks"
        context.scribe.say(f"Starting {ranks} of {' '.join(spec.command)} with torchrun on {spec.hostname}")
        if hosts > 1:
            context.scribe.say("Waiting for the other hosts")
        env = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface, **with_shim(context.env())}
        argv = torchrun_argv(spec, hosts, endpoint, address, self._folder)
        if failed := context.start("torchrun", "setup", argv, env):
            self._code = failed

    def _meeting_point(self) -> tuple[str, str, str]:
        """Endpoint, our own address and its interface."""
        ring = self.context.spec.collective
        if ring is None:
            return "127.0.0.1:0", "127.0.0.1", "lo"
        endpoint = f"{ring.driver_host}:{ring.port}"
        try:
            address = network.own_address_towards(ring.driver_host, ring.port)
            return endpoint, address, network.interface_of(address)
        except OSError:  # the first host's name is not known yet; torchrun waits for it
            return endpoint, self.context.spec.hostname, "eth0"

    def turn(self) -> None:
        for slot in list(self._unlabelled):
            try:
                rank, pid = (int(word) for word in (self._folder / f"rank.{slot}").read_bytes()[:32].split())
            except (OSError, ValueError):
                continue
            self._unlabelled.discard(slot)
            self.context.bind(pid, slot)
            self.context.scribe.label(str(slot), f"rank {rank}")

    def exited(self, exit: Exit) -> None:
        self._code = exit.code
        self.turn()
        self.context.scribe.say(f"torchrun ended with exit code {exit.code}")

    def verdict(self) -> Verdict | None:
        return None if self._code is None else Verdict(self._code, "exited")

    def stopping_can_wait(self) -> bool:
        return False

    def close(self) -> None:
        for handle in self._held:
            os.close(handle)
        self._held.clear()
        shutil.rmtree(self._folder, ignore_errors=True)


def _hosts_by_counting(spec: RunSpec) -> int:
    """How many equal hosts make up the ring; 0 when that cannot be told."""
    if spec.collective is None:
        return 1
    hosts, rest = divmod(spec.collective.max_ranks, max(1, spec.slots))
    return 0 if rest else hosts
