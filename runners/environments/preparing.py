"""Small things that preparing an environment needs: where to keep it, one at a time, running programs, plain errors."""

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

Progress = Callable[[int, str], None]
"""(percent of the whole, what it does now as words for a page)"""

TICK_SECONDS = 1.0
TAIL_BYTES = 4000
STALE_SECONDS = 24 * 3600.0
"""Nothing takes this long to prepare: the process that made such a folder was killed."""


class PrepareError(Exception):
    """Why an environment could not be prepared, and what would mend it. Both are sentences."""

    def __init__(self, text: str, mend: str) -> None:
        super().__init__(f"{text} {mend}")
        self.text = text
        self.mend = mend


class ProgramError(Exception):
    """A program ended badly; ``tail`` is the end of what it said."""

    def __init__(self, tail: str) -> None:
        super().__init__(tail)
        self.tail = tail


def cache_home() -> Path:
    """Wheels and environments are worth keeping beyond one installation."""
    named = os.environ.get("SCHEDULEARN_CACHE")
    if named:
        return Path(named).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "schedulearn"


def content_key(*parts: str | bytes) -> str:
    """Changes when any part changes; lengths keep parts apart."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:24]


def need_space(folder: Path, mib: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free // 2**20
    if free < mib:
        raise PrepareError(
            f"Only {free} MiB are free where {folder} lies; {mib} MiB are needed.",
            "Make room there, or set SCHEDULEARN_CACHE to a folder with more space.",
        )


@contextmanager
def temporary_folder(home: Path, prefix: str) -> Iterator[Path]:
    """A folder in ``home`` that is removed at the end. Also removes what killed processes have left there, often a GiB each."""
    home.mkdir(parents=True, exist_ok=True)
    for left in home.glob(f"{prefix}*"):
        with suppress(FileNotFoundError):
            if left.stat().st_mtime < time.time() - STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=home) as folder:
        yield Path(folder)


@contextmanager
def alone(lock: Path, progress: Progress, percent: int) -> Iterator[None]:
    """One process at a time makes one thing; the kernel gives the lock back if that process dies."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress(percent, "waiting for another process that prepares the same")
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
    """Run to the end, calling ``tick`` each second with the seconds it has taken and the end of its output.

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
                        raise ProgramError(f"{tail(log)}\nstopped after {seconds:.0f} s") from None
                    tick(spent, tail(log))
        finally:
            end_session(process)
    if process.returncode != 0:
        raise ProgramError(tail(log))


def make_nice(pid: int, niceness: int) -> None:
    """Lower the priority of a session's first process and of what it starts. Where the kernel groups processes by session,
    it is the group's niceness that counts."""
    try:
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))
    except OSError:
        pass  # it has ended already, or this kernel has no such groups


def end_session(process: subprocess.Popen[bytes]) -> None:
    """A stopped pip leaves compilers behind unless its whole session goes."""
    if process.poll() is None:
        os.killpg(process.pid, 9)
        process.wait()


def tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read().decode(errors="replace")


def elapsed(words: str, seconds: float) -> str:
    """``compiling Horovod: 1 min 5 s so far``"""
    return f"{words}: {clock(seconds)} so far"


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def explain(error: ProgramError, what: str, log: Path) -> PrepareError:
    """From a failed program's last words to a cause and its mend."""
    said = error.tail
    if "No space left on device" in said or "Errno 28" in said:
        return PrepareError(f"{what} failed: no space is left on the disk.", "Make room, then try again.")
    if re.search(
        r"No matching distribution|Could not find a version|Temporary failure|connection|CERTIFICATE", said, re.I
    ):
        return PrepareError(
            f"{what} failed: {last_error(said)}",
            "See that this machine's pip reaches a package index (pip config list), then try again.",
        )
    if re.search(r"Killed|internal compiler error|cannot allocate memory", said, re.I):
        return PrepareError(f"{what} failed: memory ran out.", "Free some memory (4 GiB are needed), then try again.")
    return PrepareError(f"{what} failed: {last_error(said)}", f"The whole account is in {log}.")


def last_error(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"\berror\b", line, re.I)]
    return ((named or lines or ["no word"])[-1])[:300]
