"""The processes of a container: each is started in its own session, reaped, and ended together with its descendants.

The supervisor is the first process of the container, or in the process runtime a *subreaper*: whatever a rank leaves behind
becomes its child, so that it can reap and kill it.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def exit_code_of(status: int) -> int:
    """Return the exit code as a shell does: 128 plus the signal's number for a process that a signal ended."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


class Wakeup:
    """Lets the main thread sleep until a signal arrives, another thread calls ``notify``, or the time is up."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def on_signals(self, *signals: signal.Signals) -> None:
        """Wake up on these signals."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in signals:
            signal.signal(number, _ignore_signal)

    def notify(self) -> None:
        try:
            self._writer.send(b"\0")
        except BlockingIOError:
            pass  # enough notifications are pending

    def wait(self, seconds: float) -> set[int]:
        """Sleep, then return the numbers of the signals that arrived."""
        select.select([self._reader], [], [], seconds)
        try:
            return set(self._reader.recv(4096)) - {0}
        except BlockingIOError:
            return set()


def _ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal by doing nothing, so that it interrupts nothing else."""


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
        """Start a process; return its pid and the reading end of the pipe that takes its stdout and stderr, in order.

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
                _prefer_for_oom_kill(process.pid)
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
        """Reap all ended children, and return those that we started. What is left of a child's process group is killed."""
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

    def signal_writers(self, number: signal.Signals) -> bool:
        """Send a signal to all process groups, but not to the members that read what another process writes into a pipe.

        These end by themselves, after the writer has ended; without them its last output would be an error. Return whether
        there are any.
        """
        spared = False
        with self._lock:
            for leader in self._keys:
                readers = [pid for pid in _group_members(leader) if _reads_pipe(pid)]
                if not readers:
                    _kill_group(leader, number)
                    continue
                spared = True
                for pid in set(_group_members(leader)) - set(readers):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number)
        return spared

    def signal(self, number: signal.Signals, key: str | None = None) -> None:
        """Send a signal to the process groups of one key, or of all."""
        with self._lock:
            for pid, its_key in self._keys.items():
                if key is None or key == its_key:
                    _kill_group(pid, number)

    def kill(self, pid: int) -> None:
        """Kill one descendant, if it is still there."""
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def has_descendants(self) -> bool:
        """Whether any descendant is left, a zombie included."""
        return bool(descendants(os.getpid()))

    def kill_everything(self) -> None:
        """Kill all descendants, including those that have made sessions of their own."""
        self.signal(signal.SIGKILL)
        for pid in descendants(os.getpid()):
            self.kill(pid)


def _prefer_for_oom_kill(pid: int) -> None:
    """Have the kernel kill this process first when memory runs out, so that the supervisor can report it."""
    try:
        Path(f"/proc/{pid}/oom_score_adj").write_text("900")
    except OSError:
        pass


def _kill_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _group_members(leader: int) -> list[int]:
    return [pid for pid, fields in _process_stats() if int(fields[2]) == leader]


def _reads_pipe(pid: int) -> bool:
    """Whether the standard input of a process is a pipe; ours never is, so that one of the job's processes made it."""
    try:
        return os.readlink(f"/proc/{pid}/fd/0").startswith("pipe:")  # noqa: PTH115
    except OSError:
        return False


def _process_stats() -> Iterator[tuple[int, list[bytes]]]:
    """Yield the id of each process, and what follows its name in ``/proc/<id>/stat``: state, parent, group, ..."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            yield int(entry.name), (entry / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue


def descendants(root: int) -> dict[int, str]:
    """Return all descendants of a process, parents first, with their states as the kernel's letters."""
    children: dict[int, dict[int, str]] = {}
    for pid, fields in _process_stats():
        children.setdefault(int(fields[1]), {})[pid] = fields[0].decode()
    found: dict[int, str] = {}
    todo = [root]
    while todo:
        below = children.get(todo.pop(), {})
        found |= below
        todo += below
    return found
