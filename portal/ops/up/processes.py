"""Keeps a handful of programs running in this process group, and ends all of them with it."""

import ctypes
import logging
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from portal.ops.up.logs import LogFile, follow, pass_on
from portal.ops.up.terminal import Terminal

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
STEADY_SECONDS = 30
"""A program that lived this long is started again at once when it dies."""
MOST_REST_SECONDS = 15
COPY_SECONDS = 1
"""For the last lines of a program that has ended."""


@dataclass(frozen=True)
class Program:
    """``grace_seconds`` is what it gets between SIGTERM and SIGKILL. One that ``needs_web`` is started once the portal
    answers, so that it neither fails nor waits longer than that."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    grace_seconds: float = 10
    needs_web: bool = False
    handles: tuple[int, ...] = ()
    """Files and sockets that it inherits."""


@dataclass
class Kept:
    program: Program
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    rest_seconds: float = 0.0
    due: float = 0.0
    log: LogFile | None = None
    copying: list[Thread] = field(default_factory=list)


def die_with_parent() -> None:
    """Run in the child before exec: the kernel ends it when we die, even by SIGKILL."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass
class Keeper:
    """Starts programs, starts them again when they die, and stops them together, last first.

    What they write goes to rotated files in ``folder``; with a ``terminal``, warnings and errors are shown there too, and
    whatever the web process prints: the mails of the console backend.
    """

    folder: Path
    terminal: Terminal | None = None
    clock: Callable[[], float] = time.monotonic
    kept: list[Kept] = field(default_factory=list)

    def start(self, program: Program) -> None:
        kept = Kept(program)
        self.kept.append(kept)
        self._launch(kept)

    def look(self) -> None:
        """One round: whoever died is started again, after a rest that grows while it keeps dying."""
        for kept in self.kept:
            if kept.process is not None and kept.process.poll() is not None:
                self._note_death(kept)
            if kept.process is None and self.clock() >= kept.due:
                self._launch(kept)

    def stop(self) -> None:
        for kept in reversed(self.kept):
            if kept.process is not None and kept.process.poll() is None:
                self._end(kept.process, kept.program)
        for kept in self.kept:
            for thread in kept.copying:
                thread.join(COPY_SECONDS)
            if kept.log is not None:
                kept.log.close()

    def _end(self, process: subprocess.Popen[bytes], program: Program) -> None:
        process.terminate()
        try:
            process.wait(program.grace_seconds)
        except subprocess.TimeoutExpired:
            log.warning("%s did not end within %s s and is killed", program.name, program.grace_seconds)
            process.kill()
            process.wait()

    def _launch(self, kept: Kept) -> None:
        name = kept.program.name
        kept.log = kept.log or LogFile(self.folder / f"{name}.log")
        prints = self.terminal is not None and name == "web"
        kept.process = process = subprocess.Popen(  # noqa: PLW1509
            kept.program.argv,
            env=dict(kept.program.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if prints else subprocess.STDOUT,
            preexec_fn=die_with_parent,
            pass_fds=kept.program.handles,
        )
        assert process.stdout is not None  # noqa: S101
        kept.copying = [follow(name, process.stderr or process.stdout, kept.log, self.terminal)]
        if process.stderr is not None and self.terminal is not None:
            kept.copying.append(pass_on(name, process.stdout, self.terminal))
        kept.started = self.clock()

    def _note_death(self, kept: Kept) -> None:
        assert kept.process is not None  # noqa: S101
        lived = self.clock() - kept.started
        kept.rest_seconds = 0.0 if lived > STEADY_SECONDS else min(MOST_REST_SECONDS, kept.rest_seconds * 2 + 0.5)
        kept.due = self.clock() + kept.rest_seconds
        log.warning(
            "%s ended with code %s after %.0f s; it starts again in %.1f s (see %s)",
            kept.program.name,
            kept.process.returncode,
            lived,
            kept.rest_seconds,
            self.folder / f"{kept.program.name}.log",
        )
        kept.process = None
