"""Checks whether bubblewrap can confine jobs on this machine, by running Python in it as a job would."""

import compileall
import itertools
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from runners.host import interpreters
from runners.messages import Message
from runners.messages.confinement import FilesAndProcesses, FilesOnly, Isolated, NotConfined
from runners.messages.problems import (
    INSTALL_BUBBLEWRAP,
    BubblewrapRefuses,
    CannotConfine,
    ConfinementOff,
    JobsSeeEachOther,
    NoBubblewrap,
    NoUserNamespaces,
    Problem,
    Unconfined,
)
from runners.runtimes.confinement import PRIVATE_FOLDER, JobView, Sandbox, command_line, launch_paths
from runners.runtimes.host_config import owner_for

logger = logging.getLogger(__name__)

CODE_ROOT = Path(__file__).resolve().parents[2]
"""The working directory in which ``python -m runners.launch...`` finds the package."""
PROGRAM = "bwrap"
SIZES_VERSION, NO_NESTED_USERS_VERSION = (0, 7, 0), (0, 8, 0)
"""The first releases of bubblewrap with these options."""
PROBE_SECONDS = 30
PROBE = """
import os, sys, tempfile
import runners.launch.supervisor
open(os.path.join(sys.argv[1], "written"), "w").write("by the probe")
tempfile.TemporaryFile(dir="/tmp").write(b"x")
tempfile.TemporaryFile(dir="/dev/shm").write(b"x")
open("/proc/self/status").read()
"""
KERNEL_SETTINGS = (
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel/unprivileged_userns_clone", "0", "1"),
    ("user/max_user_namespaces", "0", "10000"),
)
"""Kernel settings below /proc/sys: the name, the value that forbids user namespaces, and one that allows them."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """How jobs are confined. ``kind`` is for the node's page; ``problem`` describes what is missing, if anything."""

    sandbox: Sandbox | None
    kind: Message
    problem: Problem | None = None

    @property
    def own_network(self) -> bool:
        return self.sandbox is not None and self.sandbox.own_network


def unconfined(problem: Unconfined) -> Confinement:
    return Confinement(None, NotConfined(), problem)


def find_confinement(state_folder: Path) -> Confinement:
    """Return the strictest confinement that works here. ``state_folder`` will contain the private folders of jobs.

    ``SCHEDULEARN_CONFINE=no`` switches it off, for programs that need what it hides.
    """
    if sys.platform != "linux":
        return unconfined(CannotConfine())
    if os.environ.get("SCHEDULEARN_CONFINE", "").lower() in ("0", "false", "no"):
        return unconfined(ConfinementOff())
    program = shutil.which(PROGRAM)
    if program is None:
        logger.info("Jobs are not confined. %s", INSTALL_BUBBLEWRAP)  # make run has printed it on the terminal
        return unconfined(NoBubblewrap())
    refusals = []
    for sandbox in _candidates(program):
        refusal = _refusal(sandbox, state_folder)
        if not refusal:
            for package in launch_paths(CODE_ROOT):  # jobs cannot write bytecode there themselves
                compileall.compile_dir(package, quiet=2)
            alone = replace(sandbox, own_network=True)
            return _confined(sandbox if _refusal(alone, state_folder) else alone)
        refusals.append(refusal)
    problem = _refusal_problem(refusals[0])
    logger.warning("Jobs are not confined (%s). %s", refusals[0], problem.advice)
    return unconfined(problem)


def _confined(sandbox: Sandbox) -> Confinement:
    if sandbox.own_processes:
        return Confinement(sandbox, Isolated() if sandbox.own_network else FilesAndProcesses())
    return Confinement(sandbox, FilesOnly(), JobsSeeEachOther())


def _candidates(program: str) -> Iterator[Sandbox]:
    """Yield the possible sandboxes, the strictest first."""
    version = _version(program)
    nested = (False, True) if version >= NO_NESTED_USERS_VERSION and os.geteuid() != 0 else (True,)
    for own_processes, nested_users in itertools.product((True, False), nested):
        yield Sandbox(program, own_processes, nested_users, sizes=version >= SIZES_VERSION)


def _version(program: str) -> tuple[int, ...]:
    try:
        run = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(int(part) for part in re.findall(r"\d+", run.stdout)[:3])


def _refusal(sandbox: Sandbox, state_folder: Path) -> str:
    """Return why a job could not run in this sandbox; empty when it can."""
    try:
        with tempfile.TemporaryDirectory(prefix=".probe-", dir=state_folder) as folder:
            run = _probe(sandbox, state_folder, Path(folder))
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = run.stderr.strip().splitlines() or [f"it ended with {run.returncode}"]
    return lines[-1][:300] if run.returncode else ""


def _probe(sandbox: Sandbox, state_folder: Path, private: Path) -> subprocess.CompletedProcess[str]:
    owner = owner_for(0, os.geteuid(), os.getegid())
    os.chown(private, owner.uid, owner.gid)
    python = interpreters.required_paths(sys.executable, hidden_folders(state_folder))
    view = JobView(
        owner,
        os.geteuid() == 0,
        python,
        CODE_ROOT,
        private,
        launch_paths(CODE_ROOT),
        own_network=sandbox.own_network,
    )
    return subprocess.run(
        command_line(sandbox, view, [sys.executable, "-c", PROBE, str(PRIVATE_FOLDER)]),
        env={"PATH": os.defpath},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PROBE_SECONDS,
        check=False,
    )


def hidden_folders(state: Path) -> tuple[Path, ...]:
    """Return the folders from which a job sees only what it needs: the user's home, the portal's and the agent's data."""
    portal = os.environ.get("SCHEDULEARN_HOME")
    homes = (Path.home(), state, *([Path(portal).expanduser()] if portal else []))
    return tuple({*homes, *(home.resolve() for home in homes)})


def _refusal_problem(refusal: str) -> Unconfined:
    for name, forbids, allows in KERNEL_SETTINGS:
        try:
            value = Path("/proc/sys", name).read_text().strip()
        except OSError:
            continue
        if value == forbids and os.geteuid() != 0:
            return NoUserNamespaces(name.replace("/", "."), allows)
    return BubblewrapRefuses(refusal)
