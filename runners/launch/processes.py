"""The processes of a container: started in sessions of their own, reaped by us, ended without a rest.

We are the first process of the container, or in the process runtime a *subreaper*: whatever a rank leaves behind
becomes our child, so we can reap and kill it.
"""

import ctypes
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def exit_code_of(status: int) -> int:
    """As a shell says it: 128 and the signal's number for a process that a signal ended."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


class Wakeup:
    """Lets the main thread rest until a signal arrives, another thread rings, or the time is up."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def on_signals(self, *signals: signal.Signals) -> None:
        """Their arrival alone wakes; who sleeps here looks at the world and not at which signal it was."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in signals:
            signal.signal(number, _noted)

    def ring(self) -> None:
        try:
            self._writer.send(b"\0")
        except BlockingIOError:
            pass  # it is ringing already

    def wait(self, seconds: float) -> set[int]:
        """Returns the numbers of the signals that arrived."""
        select.select([self._reader], [], [], seconds)
        try:
            return set(self._reader.recv(4096)) - {0}
        except BlockingIOError:
            return set()


def _noted(_number: int, _frame: FrameType | None) -> None:
    """A handler of our own makes the signal interrupt nothing else."""


@dataclass(frozen=True, slots=True)
class Exit:
    key: str
    pid: int
    code: int


class Processes:
    """Children by key. One live process per key."""

    def __init__(self) -> None:
        self._keys: dict[int, str] = {}
        self._lock = threading.Lock()

    def start(
        self, key: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path, close_fds_but: Sequence[int] = ()
    ) -> tuple[int, int]:
        """Returns its pid and the reading end of the pipe that takes its stdout and stderr, in order.

        Raises OSError when the program cannot be started.
        """
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            with self._lock:  # the reaper must not meet a child it cannot name
                process = subprocess.Popen(
                    list(argv),
                    env=dict(env),
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=writer,
                    stderr=writer,
                    start_new_session=True,
                    pass_fds=close_fds_but,
                )
                process.returncode = 0  # reaped by us, not by this object
                _die_before_us(process.pid)
                self._keys[process.pid] = key
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        return process.pid, reader

    def running(self) -> set[str]:
        with self._lock:
            return set(self._keys.values())

    def reap(self) -> list[Exit]:
        """Buries the dead, adopted ones too, and returns those we started. What a dead one's group left is killed."""
        exits = []
        with self._lock:
            while True:
                try:
                    dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                except ChildProcessError:
                    break
                if dead is None:
                    break
                pid = dead.si_pid
                if pid in self._keys:
                    _kill_group(pid, signal.SIGKILL)  # while the zombie still holds the number
                _, status = os.waitpid(pid, 0)
                if key := self._keys.pop(pid, None):
                    exits.append(Exit(key, pid, exit_code_of(status)))
        return exits

    def signal(self, number: signal.Signals, key: str | None = None) -> None:
        """To the process groups of one key, or of all."""
        with self._lock:
            for pid, its_key in self._keys.items():
                if key is None or key == its_key:
                    _kill_group(pid, number)

    def kill(self, pid: int) -> None:
        """One process below us, if it is still there."""
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def left(self) -> bool:
        """Whether anything below us is still there, a zombie included."""
        return bool(descendants(os.getpid()))

    def kill_everything(self) -> None:
        """Our processes, their descendants and those that slipped into sessions of their own."""
        self.signal(signal.SIGKILL)
        for pid in descendants(os.getpid()):
            self.kill(pid)


def _die_before_us(pid: int) -> None:
    """When memory runs out, the rank goes and we live to tell."""
    try:
        Path(f"/proc/{pid}/oom_score_adj").write_text("900")
    except OSError:
        pass


def _kill_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def descendants(root: int) -> dict[int, str]:
    """Everything below a process, parents first, with its state: the letter that the kernel gives it."""
    children: dict[int, dict[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), {})[int(entry.name)] = fields[0].decode()
    found: dict[int, str] = {}
    todo = [root]
    while todo:
        below = children.get(todo.pop(), {})
        found |= below
        todo += below
    return found
