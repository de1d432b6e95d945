"""Where packages are resolved and built: bubblewrap, a container, or, for wheels only, a plain process.

A package that is built from source runs its own code. In a sandbox it has its own user id (where the agent is root), sees the
system, the interpreter and its own folder, writes only there, and reaches only the hosts of a proxy through a unix socket
(``runners/host/egress.py``, and ``inside.py`` on the other end). uv itself runs there too: it reads what strangers published.
"""

import errno
import hashlib
import itertools
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from runners.environments.installing import Tick, report_nothing
from runners.environments.layers.disk_watch import MAX_BYTES, DiskWatch
from runners.environments.preparing import PrepareError, ProgramError, cache_home, run
from runners.host import interpreters
from runners.messages.builds import OverBuildMemory
from runners.messages.environment_failures import SystemRefused
from runners.messages.layer_failures import TimeLimit
from runners.runtimes import confinement_check
from runners.runtimes.confinement import JobView, Sandbox, command_line
from runners.runtimes.control_groups import ControlGroups, find_control_groups
from runners.runtimes.host_config import Owner
from runners.spec import Resources

logger = logging.getLogger(__name__)

INSIDE = Path(__file__).with_name("inside.py")
BUILD_UID_BASE, BUILD_UID_SPAN = 2_101_000_000, 1_000_000
"""User ids of builds, outside those of jobs (``host_config.JOB_UID_BASE``) and outside every range that people use."""
GIB = 2**30
MIN_ADDRESSES = 8 * GIB
"""Of each process, however little memory there is: programs reserve more than they use."""
MEMORY_SHARE, MIN_MEMORY_MIB = 0.5, 4096
"""The part of the machine's memory that builds may use beside jobs, and the least."""
CPU_WEIGHT = 25
"""A quarter of what a job gets when both want the processors."""
GROUPS_FOLDER = "schedulearn-builds"
MAX_FILE_BYTES = 16 * GIB
MAX_OPEN_FILES = 4096
MAX_PROCESSES = 1024
TEMPORARY_MIB = 256
PATH = "/usr/local/bin:/usr/bin:/bin"
NICENESS = 10
"""Builds yield the processors to the jobs that run on this machine."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a build. All paths are the same inside and outside of its sandbox."""

    argv: tuple[str | Path, ...]
    work: Path
    """The folder that it may write to; it reads ``read_only``, the interpreter and the system."""
    log: Path
    """Where its output is added."""
    env: Mapping[str, str]
    """Its variables, beside a few usual ones, and HOME and TMPDIR in ``work``."""
    socket: Path | None = None
    """The socket of the proxy through which it reaches its hosts, in a folder of the build alone; without, it is offline."""
    read_only: tuple[Path, ...] = ()
    tick: Tick = report_nothing
    """Called each second. It may raise, which ends the command."""
    seconds: float = 3600
    max_bytes: int = MAX_BYTES
    """How much the folder of the build may have."""
    accounts: Path | None = None
    """Seen as /etc/passwd, for programs that ask who they are, such as ssh."""

    @property
    def readable(self) -> tuple[Path, ...]:
        """What its sandbox shows read-only, beside the system and the interpreter."""
        return (INSIDE, *((self.socket.parent,) if self.socket else ()), *self.read_only)

    @property
    def variables(self) -> dict[str, str]:
        """Its whole environment."""
        usual = {"PATH": PATH, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        return {**usual, **self.env, "HOME": str(self.work / "home"), "TMPDIR": str(self.work / "tmp")}


class BuildSandbox(Protocol):
    @property
    def confined(self) -> bool:
        """Whether code of strangers may run in it. Without, packages are only unpacked."""
        ...

    def run(self, command: Command) -> None:
        """Run a command to its end. Raises ProgramError when it fails, and PrepareError when a limit (disk, size, time) stops
        it."""
        ...


# --- what all sandboxes share -----------------------------------------------------------------------------------------


def build_owner(work: Path) -> Owner:
    """Return the user of a build: its own if the agent is root, else the agent's."""
    if os.geteuid() != 0:
        return Owner(os.geteuid(), os.getegid())
    uid = BUILD_UID_BASE + int(hashlib.sha256(str(work).encode()).hexdigest(), 16) % BUILD_UID_SPAN
    return Owner(uid, uid)


def make_homes(work: Path, owner: Owner) -> None:
    """Make ``work`` and the folders for HOME and TMPDIR in it writable for the build. It may have put links in their place
    meanwhile, so none is followed."""
    for folder in (work, work / "home", work / "tmp"):
        if not folder.is_symlink():
            folder.mkdir(exist_ok=True)
        os.chown(folder, owner.uid, owner.gid, follow_symlinks=False)


def private_folder(work: Path) -> Path:
    """Return a folder beside ``work``, for a mount whose source the build must not have replaced by a link."""
    return make(work.with_name(f"{work.name}.private"))


def give_socket(socket: Path | None, owner: Owner) -> None:
    """Let the build connect to the proxy. Other users cannot: the folder of the socket has mode 0700."""
    for path in (socket.parent, socket) if socket else ():
        os.chown(path, owner.uid, owner.gid)


def limits(own_user: bool) -> dict[str, int]:
    """Return the limits of each process, as RLIMIT names. Without an own user, all processes of the agent would count."""
    counted = {"NPROC": MAX_PROCESSES} if own_user else {}
    return {
        "AS": max(MIN_ADDRESSES, physical_memory()),
        "FSIZE": MAX_FILE_BYTES,
        "NOFILE": MAX_OPEN_FILES,
        "CORE": 0,
        **counted,
    }


def physical_memory() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_mib() -> int:
    """Return how much memory builds may use."""
    return max(MIN_MEMORY_MIB, int(physical_memory() * MEMORY_SHARE) >> 20)


def entry_command(python: str, own_user: bool, command: Command) -> list[str]:
    """Return the command line that sets the limits, forwards the network and then runs the command."""
    return [
        python,
        "-I",
        "-S",
        str(INSIDE),
        json.dumps(limits(own_user)),
        str(command.socket or ""),
        *map(str, command.argv),
    ]


def watched(command: Command) -> Tick:
    """Return a tick that also ends a command which fills the disk or takes too long."""
    watch = DiskWatch(command.work.parent, command.log, command.max_bytes)  # with what is beside it
    began = time.monotonic()

    def check(spent: float, output: str) -> None:
        if time.monotonic() - began > command.seconds:
            raise PrepareError(TimeLimit(int(command.seconds // 60)))
        watch.check()
        command.tick(spent, output)

    return check


def only(env: Mapping[str, str]) -> dict[str, str | None]:
    """Return changes after which a process has exactly these variables."""
    return {**dict.fromkeys(os.environ), **env}


@cache
def build_groups() -> ControlGroups | None:
    """Return the control groups that limit the builds of this machine, together and each; None where there are none."""
    groups, why = find_control_groups(GROUPS_FOLDER)
    if groups is None:
        logger.info("The memory of builds is not limited: %s", why.text)
        return None
    try:
        groups.limit_all(memory_mib())
        groups.remove_of_ended_processes()
    except OSError as error:
        logger.warning("The memory of builds is not limited: %s", error)
        return None
    return groups


_numbers = itertools.count(1)


@contextmanager
def limited(groups: ControlGroups | None, argv: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the command line that runs ``argv`` in a control group. Raises PrepareError if it fails because of its memory."""
    if groups is None:
        yield argv
        return
    name = f"{os.getpid()}-{next(_numbers)}"
    memory = memory_mib()
    try:
        groups.create(name, Resources(os.cpu_count() or 1, memory, pids=MAX_PROCESSES), CPU_WEIGHT)
        yield groups.entering(name, argv)
    except ProgramError as error:
        if groups.was_out_of_memory(name):
            raise PrepareError(OverBuildMemory(memory)) from error
        raise
    finally:
        groups.remove(name)


def run_process(argv: Sequence[str], command: Command, groups: ControlGroups | None) -> None:
    """Run a command as a process of this machine, with the command line that confines it."""
    try:
        with limited(groups, argv) as in_group:
            run(
                in_group,
                command.log,
                watched(command),
                env=only(command.variables),
                cwd=command.work,
                seconds=command.seconds + 60,
                niceness=NICENESS,
            )
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ProgramError("No space left on device") from error
        raise PrepareError(SystemRefused(str(error))) from error


# --- the sandboxes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BubblewrapSandbox:
    """Bubblewrap on this machine, without a network."""

    sandbox: Sandbox
    python: str
    groups: ControlGroups | None = None

    confined = True

    def run(self, command: Command) -> None:
        owner = build_owner(command.work)
        make_homes(command.work, owner)
        give_socket(command.socket, owner)
        is_root = os.geteuid() == 0
        view = JobView(
            owner,
            is_root,
            interpreters.required_paths(self.python, confinement_check.hidden_folders(cache_home())),
            cwd=command.work,
            private=private_folder(command.work),
            read_only=command.readable,
            writable=(command.work,),
            tmp_mib=TEMPORARY_MIB,
            shm_mib=TEMPORARY_MIB,
            isolated=True,
            accounts=command.accounts,
        )
        argv = command_line(self.sandbox, view, entry_command(self.python, is_root, command))
        run_process(argv, command, self.groups)


@dataclass(frozen=True)
class PlainSandbox:
    """No sandbox, for machines that have neither bubblewrap nor Docker: only wheels are unpacked, no code of theirs runs."""

    python: str
    groups: ControlGroups | None = None

    confined = False

    def run(self, command: Command) -> None:
        make_homes(command.work, Owner(os.geteuid(), os.getegid()))
        run_process(entry_command(self.python, False, command), command, self.groups)


def process_sandbox(python: str) -> BuildSandbox:
    """Return the sandbox for builds with an interpreter of this machine: bubblewrap if it works and can also take the network
    away, which some containers do not allow; else a plain process."""
    found = confinement_check.find_confinement(make(cache_home())).sandbox
    if found is not None and found.own_processes and found.own_network:
        return BubblewrapSandbox(found, python, build_groups())
    return PlainSandbox(python, build_groups())


def make(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
