"""Limits of memory, processors and processes for jobs that run as plain processes, and for builds: a control group for each.

It takes root, and a kernel whose control groups the agent may change: version 2 with a part delegated to the agent (systemd:
``Delegate=yes``), or version 1. Elsewhere nothing is limited, and the node's page shows that.
"""

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runners.messages import Message
from runners.messages.confinement import LimitsEnforced, LimitsNotEnforced
from runners.spec import Resources

CGROUPS, MOUNTS = Path("/proc/self/cgroup"), Path("/proc/self/mountinfo")
PERIOD_MICROSECONDS = 100_000
REMOVE_SECONDS = 5.0
"""How long the kernel may still count processes of a group that were killed."""
ENTER = 'while [ "$1" != -- ]; do echo 0 > "$1"; shift; done; shift; exec "$@"'
"""A shell that enters the groups by their files of processes, then becomes the program: nothing runs outside of them."""
CONTROLLERS = ("memory", "cpu", "pids")
USUAL_CPU_WEIGHT, USUAL_SHARES = 100, 1024
"""What a group has of the processors that others want, too: as version 2 counts, and version 1."""


@dataclass(frozen=True)
class ControlGroups:
    """Control groups below those of the agent, one for each container or build."""

    parents: Mapping[str, Path]
    """The folder of the agent's groups for each controller; version 2 has one for all."""
    unified: bool
    """Whether this is version 2."""

    def create(self, name: str, resources: Resources, cpu_weight: int = USUAL_CPU_WEIGHT) -> None:
        """Make the groups of a container. ``cpu_weight`` is its part of processors that others want, too. Raises OSError."""
        for folder in self._folders(name):
            folder.mkdir(exist_ok=True)
        self._write(name, [*self._memory_values(resources.memory_mib), *self._values(resources)])
        if cpu_weight != USUAL_CPU_WEIGHT:
            weight = ("cpu.weight", cpu_weight) if self.unified else ("cpu.shares", cpu_weight * USUAL_SHARES // 100)
            self._write(name, [("cpu", *weight)])

    def limit_all(self, memory_mib: int) -> None:
        """Limit the memory of all groups together. Raises OSError."""
        self._write("", self._memory_values(memory_mib))

    def entering(self, name: str, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs ``argv`` within the groups of a container."""
        files = [str(folder / "cgroup.procs") for folder in self._folders(name)]
        return ["/bin/sh", "-ec", ENTER, "sh", *files, "--", *argv]

    def was_out_of_memory(self, name: str) -> bool:
        """Return whether the kernel has killed a process of the container because of its memory limit."""
        file = "memory.events" if self.unified else "memory.oom_control"
        try:
            lines = (self.parents["memory"] / name / file).read_text().splitlines()
        except OSError:
            return False
        return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in lines)

    def remove(self, name: str) -> None:
        """Remove the groups of a container whose processes have ended, at the latest after some seconds."""
        until = time.monotonic() + REMOVE_SECONDS
        for folder in self._folders(name):
            while folder.is_dir():
                try:
                    folder.rmdir()
                except OSError:
                    if time.monotonic() > until:
                        break  # a process of it hangs in the kernel; the next agent tries again
                    time.sleep(0.05)

    def remove_of_ended_processes(self) -> None:
        """Remove the groups whose names begin with the id of a process that has ended, as far as nothing runs in them."""
        for parent in set(self.parents.values()):
            for folder in parent.iterdir():
                pid = folder.name.partition("-")[0]
                if folder.is_dir() and pid.isdecimal() and not Path("/proc", pid).exists():
                    with suppress(OSError):
                        folder.rmdir()

    def remove_others(self, names: Collection[str]) -> None:
        """Remove the groups of containers that are not among these, as far as nothing runs in them."""
        for parent in set(self.parents.values()):
            for folder in parent.iterdir():
                if folder.is_dir() and folder.name not in names:
                    with suppress(OSError):
                        folder.rmdir()

    def _folders(self, name: str) -> list[Path]:
        return [parent / name for parent in dict.fromkeys(self.parents.values())]

    def _write(self, name: str, values: Iterable[tuple[str, str, object]]) -> None:
        for controller, file, value in values:
            path = self.parents[controller] / name / file
            if path.exists() or file not in OPTIONAL:
                path.write_text(str(value))

    def _memory_values(self, memory_mib: int) -> list[tuple[str, str, object]]:
        memory = memory_mib * 2**20
        if self.unified:
            return [("memory", "memory.max", memory), ("memory", "memory.swap.max", 0)]
        return [("memory", "memory.limit_in_bytes", memory), ("memory", "memory.memsw.limit_in_bytes", memory)]

    def _values(self, resources: Resources) -> list[tuple[str, str, object]]:
        quota = int(max(0.01, resources.cpus) * PERIOD_MICROSECONDS)
        if self.unified:
            return [
                ("cpu", "cpu.max", f"{quota} {PERIOD_MICROSECONDS}"),
                ("pids", "pids.max", resources.pids),
            ]
        return [
            ("cpu", "cpu.cfs_period_us", PERIOD_MICROSECONDS),
            ("cpu", "cpu.cfs_quota_us", quota),
            ("pids", "pids.max", resources.pids),
        ]


OPTIONAL = frozenset({"memory.swap.max", "memory.memsw.limit_in_bytes"})
"""Files that a kernel without swap accounting does not have."""


def find_control_groups(folder: str) -> tuple[ControlGroups | None, Message]:
    """Return the control groups for containers, in a folder of this name below the agent's own, and what to report."""
    if os.geteuid() != 0:
        return None, LimitsNotEnforced("the agent is not root")
    try:
        own, mounts = _own_groups(CGROUPS.read_text()), _mounts(MOUNTS.read_text())
        found = _version_2(own, mounts, folder) or _version_1(own, mounts, folder)
    except OSError as error:
        return None, LimitsNotEnforced(f"control groups cannot be used: {error.strerror or error}")
    if found is None:
        return None, LimitsNotEnforced("the kernel offers no control groups for memory and processors here")
    return found, LimitsEnforced()


def _own_groups(text: str) -> dict[str, str]:
    """Return the path of the agent's group for each controller; that of version 2 has the name ``""``."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def _mounts(text: str) -> dict[str, Path]:
    """Return where the hierarchy of each controller is mounted; that of version 2 has the name ``""``."""
    found: dict[str, Path] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        place, kind, options = Path(before.split()[4]), after.split()[0], after.split()[-1]
        if kind == "cgroup2":
            found[""] = place
        elif kind == "cgroup":
            found |= dict.fromkeys(options.split(","), place)
    return found


def _version_2(own: Mapping[str, str], mounts: Mapping[str, Path], folder: str) -> ControlGroups | None:
    """Return the groups of version 2; None where it does not have the controllers. Raises OSError.

    A group with limits for its children may have no processes itself: the agent moves into one beside those of containers.
    """
    if "" not in own or "" not in mounts:
        return None
    base = mounts[""] / own[""].strip("/")
    if base.name == AGENT_FOLDER:  # an agent of before, which this one has replaced, has moved
        base = base.parent
    if not set(CONTROLLERS) <= set((base / "cgroup.controllers").read_text().split()):
        return None
    inside = base / AGENT_FOLDER
    inside.mkdir(exist_ok=True)
    (inside / "cgroup.procs").write_text(str(os.getpid()))
    enable = " ".join(f"+{each}" for each in CONTROLLERS)
    (base / "cgroup.subtree_control").write_text(enable)
    parent = base / folder
    parent.mkdir(exist_ok=True)
    (parent / "cgroup.subtree_control").write_text(enable)
    return ControlGroups(dict.fromkeys(CONTROLLERS, parent), unified=True)


AGENT_FOLDER = "schedulearn-agent"


def _version_1(own: Mapping[str, str], mounts: Mapping[str, Path], folder: str) -> ControlGroups | None:
    """Return the groups of version 1; None where a controller is not mounted. Raises OSError."""
    if not all(each in own and each in mounts for each in CONTROLLERS):
        return None
    parents = {each: mounts[each] / own[each].strip("/") / folder for each in CONTROLLERS}
    for controller, parent in parents.items():
        parent.mkdir(exist_ok=True)
        if controller == "memory":
            with suppress(OSError):  # newer kernels have no other way
                (parent / "memory.use_hierarchy").write_text("1")
    return ControlGroups(parents, unified=False)
