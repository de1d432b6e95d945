"""What preparing an environment needs: folders, locks, running programs, and clear errors."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from runners.messages import Message
from runners.messages.environment_failures import (
    DiskFull,
    Failure,
    IndexOutOfReach,
    NoSpace,
    OutOfMemory,
    ProgramFailed,
    Stage,
)
from runners.messages.environments import WaitingForOther

Progress = Callable[[int, Message], None]
"""(percent of the whole, what is done now)"""

TICK_SECONDS = 1.0
TAIL_BYTES = 4000
STALE_SECONDS = 24 * 3600.0
"""No preparation takes this long: the process that made such a folder was killed."""


class PrepareError(Exception):
    """An environment could not be prepared."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class ProgramError(Exception):
    """A program has failed; ``tail`` is the end of its output."""

    def __init__(self, tail: str) -> None:
        super().__init__(tail)
        self.tail = tail


def cache_home() -> Path:
    """Return the folder for wheels and environments, which are kept beyond one installation."""
    named = os.environ.get("SCHEDULEARN_CACHE")
    if named:
        return Path(named).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "schedulearn"


def content_key(*parts: str | bytes) -> str:
    """Return a short hash of the parts and their lengths."""
    return content_digest(*parts)[:24]


def content_digest(*parts: str | bytes) -> str:
    """Return a hash of the parts and their lengths."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def require_space(folder: Path, mib: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free // 2**20
    if free < mib:
        raise PrepareError(NoSpace(free, mib, str(folder)))


@contextmanager
def temporary_folder(home: Path, prefix: str) -> Iterator[Path]:
    """Make a folder in ``home`` and remove it at the end. Also removes what killed processes left there, often a GiB each."""
    home.mkdir(parents=True, exist_ok=True)
    for left in home.glob(f"{prefix}*"):
        with suppress(FileNotFoundError):
            if left.stat().st_mtime < time.time() - STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=home) as folder:
        yield Path(folder)


@contextmanager
def exclusive_lock(lock: Path, progress: Progress, percent: int) -> Iterator[None]:
    """Hold a lock so that one process at a time makes a thing; the kernel releases it if the process dies."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress(percent, WaitingForOther())
                time.sleep(TICK_SECONDS)
        yield


def run(
    argv: Sequence[str | Path],
    log: Path,
    tick: Callable[[float, str], None] = lambda seconds, tail: None,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    seconds: float = 3600,
    niceness: int = 0,
) -> None:
    """Run a program to its end, calling ``tick`` each second with the seconds so far and the end of its output.

    ``env`` is added to this process's environment; None removes a variable. Raises ProgramError.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        began = time.monotonic()
        process = subprocess.Popen(
            [str(part) for part in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in {**os.environ, **(env or {})}.items() if value is not None},
            cwd=cwd,
            start_new_session=True,
        )
        if niceness:
            make_nice(process.pid, niceness)
        try:
            while True:
                try:
                    process.wait(TICK_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    spent = time.monotonic() - began
                    if spent > seconds:
                        raise ProgramError(f"{read_tail(log)}\nstopped after {seconds:.0f} s") from None
                    tick(spent, read_tail(log))
        finally:
            end_session(process)
    if process.returncode != 0:
        raise ProgramError(read_tail(log))


def make_nice(pid: int, niceness: int) -> None:
    """Lower the priority of a session's first process and of what it starts. Where the kernel groups processes by session,
    the niceness of the group counts."""
    try:
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))
    except OSError:
        pass  # it has ended already, or this kernel has no such groups


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a whole session, unless it has ended: a stopped pip would leave compilers behind."""
    if process.poll() is None:
        os.killpg(process.pid, 9)
        process.wait()


def read_tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read().decode(errors="replace")


def explain(error: ProgramError, stage: Stage, log: Path) -> PrepareError:
    """Return the cause and the fix of a failure from the end of a program's output."""
    output = error.tail
    if "No space left on device" in output or "Errno 28" in output:
        return PrepareError(DiskFull(stage))
    if re.search(
        r"No matching distribution|Could not find a version|Temporary failure|connection|CERTIFICATE", output, re.I
    ):
        return PrepareError(IndexOutOfReach(stage, last_error(output)))
    if re.search(r"Killed|internal compiler error|cannot allocate memory", output, re.I):
        return PrepareError(OutOfMemory(stage))
    return PrepareError(ProgramFailed(stage, last_error(output), str(log)))


def last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("hint:")]  # uv's
    named = [line for line in lines if re.search(r"\berror\b", line, re.I)]
    return ((named or lines or ["no output"])[-1])[:300]
