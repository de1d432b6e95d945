"""Keeps a few programs running in this process group, and ends all of them with it."""

import ctypes
import logging
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from portal.ops.up.logs import LogFile, copy_to_terminal, follow
from portal.ops.up.terminal import Terminal

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
STEADY_SECONDS = 30
"""A program that ran this long is restarted at once when it dies."""
MAX_PAUSE_SECONDS = 15
COPY_SECONDS = 1
"""Time for copying the last lines of a program that has ended."""


@dataclass(frozen=True)
class Program:
    """A program to run. ``grace_seconds`` is the time between SIGTERM and SIGKILL. One that ``needs_web`` is started once
    the portal answers, so that it neither fails nor waits longer than that."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    grace_seconds: float = 10
    needs_web: bool = False
    handles: tuple[int, ...] = ()
    """Files and sockets that it inherits."""


@dataclass
class ManagedProgram:
    program: Program
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    rest_seconds: float = 0.0
    due: float = 0.0
    log: LogFile | None = None
    copying: list[Thread] = field(default_factory=list)


def die_with_parent() -> None:
    """Make the kernel end this process when its parent dies, even by SIGKILL; run in the child before exec."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass
class ProgramManager:
    """Starts programs, restarts them when they die, and stops them together, the last one first.

    Their output goes to rotated files in ``folder``; with a ``terminal``, warnings and errors are shown there too, and
    everything that the web process prints, such as the mails of the console backend.
    """

    folder: Path
    terminal: Terminal | None = None
    clock: Callable[[], float] = time.monotonic
    programs: list[ManagedProgram] = field(default_factory=list)

    def start(self, program: Program) -> None:
        managed = ManagedProgram(program)
        self.programs.append(managed)
        self._launch(managed)

    def check(self) -> None:
        """Restart the programs that died, after a pause that grows while a program keeps dying."""
        for managed in self.programs:
            if managed.process is not None and managed.process.poll() is not None:
                self._note_death(managed)
            if managed.process is None and self.clock() >= managed.due:
                self._launch(managed)

    def stop(self) -> None:
        for managed in reversed(self.programs):
            if managed.process is not None and managed.process.poll() is None:
                self._end(managed.process, managed.program)
        for managed in self.programs:
            for thread in managed.copying:
                thread.join(COPY_SECONDS)
            if managed.log is not None:
                managed.log.close()

    def _end(self, process: subprocess.Popen[bytes], program: Program) -> None:
        process.terminate()
        try:
            process.wait(program.grace_seconds)
        except subprocess.TimeoutExpired:
            log.warning("%s did not end within %s s and is killed", program.name, program.grace_seconds)
            process.kill()
            process.wait()

    def _launch(self, managed: ManagedProgram) -> None:
        name = managed.program.name
        managed.log = managed.log or LogFile(self.folder / f"{name}.log")
        prints = self.terminal is not None and name == "web"
        managed.process = process = subprocess.Popen(  # noqa: PLW1509
            managed.program.argv,
            env=dict(managed.program.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if prints else subprocess.STDOUT,
            preexec_fn=die_with_parent,
            pass_fds=managed.program.handles,
        )
        assert process.stdout is not None  # noqa: S101
        managed.copying = [follow(name, process.stderr or process.stdout, managed.log, self.terminal)]
        if process.stderr is not None and self.terminal is not None:
            managed.copying.append(copy_to_terminal(name, process.stdout, self.terminal))
        managed.started = self.clock()

    def _note_death(self, managed: ManagedProgram) -> None:
        assert managed.process is not None  # noqa: S101
        lived = self.clock() - managed.started
        managed.rest_seconds = 0.0 if lived > STEADY_SECONDS else min(MAX_PAUSE_SECONDS, managed.rest_seconds * 2 + 0.5)
        managed.due = self.clock() + managed.rest_seconds
        log.warning(
            "%s ended with code %s after %.0f s; it starts again in %.1f s (see %s)",
            managed.program.name,
            managed.process.returncode,
            lived,
            managed.rest_seconds,
            self.folder / f"{managed.program.name}.log",
        )
        managed.process = None
