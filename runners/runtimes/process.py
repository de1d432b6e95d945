"""Runs jobs as processes of this machine, for trying Schedulearn out on one's own computer.

Where bubblewrap works, each job runs inside it and sees only its own files and processes (``runners/runtimes/confinement.py``);
elsewhere a job can access the files of the agent's user. Its network is empty where bubblewrap can make one and it has no
peers, else that of this machine. The portal refuses this runtime for several users. The facts about each process are in a small
file, so that the next agent finds the process again.
"""

import json
import os
import platform
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from runners.host import interpreters, processes
from runners.host.node_files import PRIVATE_SUFFIX, write_json
from runners.messages import Message
from runners.messages.confinement import LimitsNotEnforced
from runners.messages.containers import (
    EnvironmentMissing,
    FoldersNotGiven,
    GoneBeforeStart,
    NotConfined,
    NotLimited,
    ProcessNotStarted,
)
from runners.messages.problems import CannotConfine, Problem
from runners.runtime import (
    AttemptNetwork,
    CreateError,
    EnvironmentLookup,
    Folders,
    LayerLookup,
    ObservedContainer,
    launch_module,
    no_layers,
)
from runners.runtimes import confinement, dataset_places
from runners.runtimes.confinement_check import CODE_ROOT, Confinement, hidden_folders, unconfined
from runners.runtimes.control_groups import ControlGroups
from runners.runtimes.host_config import groups_for, owner_for, short_hash
from runners.runtimes.owners import chown_folders
from runners.spec import (
    CACHE_VARIABLE,
    INPUTS_VARIABLE,
    LAYER_VARIABLE,
    NETWORK_VARIABLE,
    SECRET_VARIABLES_VARIABLE,
    SECRETS_VARIABLE,
    RunSpec,
)

POLL_SECONDS = 0.05
SPAWN_SECONDS = 10
"""Time for bubblewrap to report which process it has started, on a busy machine."""
MAX_PRIVATE_CHARACTERS = 70
"""The path of a socket has 107 characters at most; Python adds 32 to TMPDIR where processes exchange tensors or queues."""
KILL_SECONDS = 10
"""A killed process that is still there after this time hangs in the kernel; nothing more can be done about it."""


class ProcessRuntime:
    """A ContainerRuntime of plain processes. ``python_of`` returns the python of an environment's virtualenv.

    ``state`` is a folder of the agent that outlives it. It has one ``<name>.json`` per container, written before the start
    and after it, and the output of its first process. ``confine`` finds out how jobs with folders beside ``state`` can be
    confined.
    """

    kind: Literal["process"] = "process"

    def __init__(
        self,
        installation: str,
        node: str,
        state: Path,
        python_of: EnvironmentLookup,
        confine: Callable[[Path], Confinement] = lambda state: unconfined(CannotConfine()),
        limit: Callable[[str], tuple[ControlGroups | None, Message]] = lambda folder: (
            None,
            LimitsNotEnforced("not set up"),
        ),
        layer_of: LayerLookup = no_layers,
    ) -> None:
        self.installation = installation
        self.node = node
        self.state = state
        self.python_of = python_of
        self.layer_of = layer_of
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.confinement = confine(state)
        # Several agents may share one machine.
        self.groups, self.limits = limit(f"schedulearn-{short_hash(str(state.resolve()), 8)}")
        if self.groups is not None:
            self.groups.remove_others([path.stem for path in state.glob("*.json")])

    def check(self) -> list[Problem]:
        return [self.confinement.problem] if self.confinement.problem else []

    def facts(self) -> dict[str, Any]:
        pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return {
            "engine": "processes",
            "confinement": self.confinement.kind.text,  # for portals of the previous release
            "confinement_message": self.confinement.kind.data(),
            "limits_message": self.limits.data(),
            "system": platform.platform(terse=True),
            "kernel": platform.release(),
            "cpus": os.cpu_count() or 1,
            "memory_mib": pages * page // 2**20,
        }

    def is_ours(self, pid: int) -> bool:
        return processes.has_mark_prefix(pid, f"{self.state.resolve()}/")

    # Operations

    def create(self, spec: RunSpec, folders: Folders) -> None:
        if self._read(spec.name) is not None:
            return
        python, layer = self.python_of(spec.environment), self.layer_of(spec.layer) if spec.layer else None
        if python is None or (spec.layer and layer is None):
            raise CreateError(EnvironmentMissing(spec.environment))
        sandbox = self.confinement.sandbox
        try:
            lab = str(folders.lab_data or "")
            dataset_places.prepare(folders, lab, beside=folders.workspace.parent, links=sandbox is None)
        except OSError as error:
            raise CreateError(FoldersNotGiven(str(error))) from error
        private = self._make_private_folder(spec.name, may_be_long=sandbox is not None)
        argv = [python, "-m", launch_module(spec)]
        if sandbox is not None:
            try:
                argv = confinement.command_line(sandbox, self._view(spec, folders, python, layer), argv)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                raise CreateError(NotConfined(str(error))) from error
        record = {
            "installation": self.installation,
            "node": self.node,
            "name": spec.name,
            "job": spec.job,
            "identity": asdict(spec.identity) if spec.identity else None,
            "attempt": spec.attempt,
            "epoch": spec.number,
            "argv": argv,
            "confined": sandbox is not None,
            "env": environment(spec, folders, python, confinement.PRIVATE_FOLDER if sandbox else private, layer),
            "file_mib": spec.resources.disk_mib,
            "limited": self._limit(spec),
            "process": None,
            "exit_code": None,
        }
        self._write(spec.name, record)

    def _limit(self, spec: RunSpec) -> bool:
        """Make the container's control groups; return whether there are any."""
        if self.groups is None:
            return False
        try:
            self.groups.create(spec.name, spec.resources)
        except OSError as error:
            raise CreateError(NotLimited(str(error))) from error
        return True

    def _view(self, spec: RunSpec, folders: Folders, python: str, layer: Path | None) -> confinement.JobView:
        """Give the job its folders, and return what it sees of this machine."""
        private = self._private_folder(spec.name)
        owner = owner_for(spec.job, os.geteuid(), os.getegid())
        chown_folders(folders, owner)
        os.chown(private, owner.uid, owner.gid)
        devices: tuple[str, ...] = ()
        if spec.gpu_kind == "cuda":
            confinement.make_gpu_devices()
            devices = confinement.gpu_devices(spec.gpus)
        own_network = spec.collective is None and self.confinement.own_network
        return confinement.JobView(
            owner=owner,
            is_root=os.geteuid() == 0,
            python=interpreters.required_paths(python, hidden_folders(self.state)),
            cwd=CODE_ROOT,
            private=private,
            read_only=(
                *confinement.launch_paths(CODE_ROOT),
                folders.control,
                *filter(None, (folders.data, folders.lab_data, folders.inputs, layer, folders.network)),
                *filter(None, (folders.secret_files, folders.secret_variables)),
            ),
            writable=(
                *(folders.workspace, folders.scribe, folders.outputs, folders.checkpoints),
                *filter(None, (folders.cache,)),
            ),
            mounts=tuple(
                (place.source, Path(place.within(str(folders.workspace))), place.writable)
                for place in dataset_places.places(folders)
            ),
            groups=groups_for(spec, os.geteuid()),
            devices=devices,
            tmp_mib=spec.resources.tmp_mib,
            shm_mib=spec.resources.shm_mib,
            hosts=self._write_hosts(spec.name) if own_network else None,
            own_network=own_network,
        )

    def _write_hosts(self, name: str) -> Path:
        """Write the /etc/hosts of a container whose network is empty: it cannot have the addresses of the machine."""
        file = self.state / f"{name}.hosts"
        own = platform.node()
        file.write_text(f"127.0.0.1 localhost {own}\n::1 localhost\n")
        file.chmod(0o644)
        return file

    def start(self, name: str) -> None:
        record = self._read(name)
        if record is None:
            raise CreateError(GoneBeforeStart())
        if record["process"] is not None or record["exit_code"] is not None:
            return
        # An agent may have been killed after the start and before it was recorded: processes have a mark.
        confined = record.get("confined", False)
        if stray := processes.pids_with_mark(self._mark(name)):
            self._write(name, {**record, "process": processes.identity_of(first_process(stray, confined))})
            return
        reader, writer = os.pipe()
        argv = record["argv"]
        if confined:
            argv = [argv[0], "--info-fd", str(writer), *argv[1:]]
        if self.groups is not None and record.get("limited"):
            argv = self.groups.entering(name, argv)
        try:
            with self._output_file(name).open("ab") as output:
                child = subprocess.Popen(
                    argv,
                    cwd=CODE_ROOT,
                    env={**record["env"], processes.MARK: self._mark(name)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(writer,) if confined else (),
                )
            os.close(writer)
            writer = -1
            self.children[name] = child
            set_file_limits(child.pid, record["file_mib"])
            first = (confined and read_child_pid(reader)) or child.pid
        except OSError as error:
            raise CreateError(ProcessNotStarted(str(error))) from error
        finally:
            os.close(reader)
            if writer != -1:
                os.close(writer)
        set_file_limits(first, record["file_mib"])
        self._write(name, {**record, "process": processes.identity_of(first)})

    def signal(self, name: str, signum: int) -> None:
        record = self._refreshed_record(name)
        if record is not None and record["process"] and record["exit_code"] is None:
            processes.send_signal(record["process"], signum)

    def stop(self, name: str, grace_seconds: int) -> None:
        self.signal(name, signal.SIGTERM)
        until = time.monotonic() + grace_seconds
        while time.monotonic() < until and self._is_alive(name):
            time.sleep(POLL_SECONDS)
        self._kill_all(name)

    def remove(self, name: str) -> None:
        if self._read(name) is None:
            return
        self._kill_all(name)
        self.children.pop(name, None)
        if self.groups is not None:
            self.groups.remove(name)
        shutil.rmtree(self._private_folder(name).resolve(), ignore_errors=True)
        if self._private_folder(name).is_symlink():
            self._private_folder(name).unlink()
        self._output_file(name).unlink(missing_ok=True)
        (self.state / f"{name}.hosts").unlink(missing_ok=True)
        self._record_file(name).unlink(missing_ok=True)

    def list(self) -> list[ObservedContainer]:
        seen = []
        for path in sorted(self.state.glob("*.json")):
            record = self._refreshed_record(path.stem)
            if record is None or (record["installation"], record["node"]) != (self.installation, self.node):
                continue
            state: Literal["created", "running", "exited"] = "running"
            if record["exit_code"] is not None:
                state = "exited"
            elif record["process"] is None:
                state = "created"
            elif self._is_gone(record):
                state = "exited"
            seen.append(
                ObservedContainer(
                    name=record["name"],
                    job=record["job"],
                    attempt=record["attempt"],
                    epoch=record["epoch"],
                    state=state,
                    exit_code=record["exit_code"],
                    oom_killed=state == "exited"
                    and self.groups is not None
                    and self.groups.was_out_of_memory(path.stem),
                )
            )
        return seen

    def connect(self, attempts: Sequence[AttemptNetwork]) -> None:
        """Nothing to do: jobs of plain processes stay on one machine."""

    def logs(self, name: str, limit_bytes: int) -> bytes:
        try:
            with self._output_file(name).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - limit_bytes))
                return file.read(limit_bytes)
        except FileNotFoundError:
            return b""

    # Helpers

    def _record_file(self, name: str) -> Path:
        return self.state / f"{name}.json"

    def _private_folder(self, name: str) -> Path:
        """Return the folder for the container's HOME and temporary files."""
        return self.state / f"{name}{PRIVATE_SUFFIX}"

    def _make_private_folder(self, name: str, may_be_long: bool) -> Path:
        """Make a container's private folder. If its path is too long for the sockets in it, it becomes a link to a shorter one."""
        folder = self._private_folder(name)
        if folder.is_symlink() and not folder.exists():
            folder.unlink()  # the system has cleared its temporary files
        if may_be_long or len(str(folder)) <= MAX_PRIVATE_CHARACTERS or folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
        else:
            folder.symlink_to(tempfile.mkdtemp(prefix="sl-"))
        return folder.resolve() if folder.is_symlink() else folder

    def _output_file(self, name: str) -> Path:
        return self.state / f"{name}.out"

    def _mark(self, name: str) -> str:
        return f"{self.state.resolve()}/{name}"

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self._record_file(name).read_bytes())
        except FileNotFoundError:
            return None
        return found

    def _write(self, name: str, record: dict[str, Any]) -> None:
        """Write a record. Several threads may notice the same end, and each writes it."""
        write_json(self._record_file(name), record, 0o600)

    def _refreshed_record(self, name: str) -> dict[str, Any] | None:
        """Return the record, after adding the exit code if our child has ended."""
        record = self._read(name)
        child = self.children.get(name)
        if record is None or child is None or record["exit_code"] is not None:
            return record
        code = child.poll()
        if code is None:
            return record
        if code < 0 and record.get("confined") and record["process"] and processes.is_alive(record["process"]):
            # Bubblewrap was killed, but not what it started: that process is watched from now on.
            self.children.pop(name, None)
        else:
            record["exit_code"] = code if code >= 0 else 128 - code
            self._write(name, record)
        return record

    def _is_alive(self, name: str) -> bool:
        record = self._refreshed_record(name)
        if record is None or record["process"] is None or record["exit_code"] is not None:
            return False
        return not self._is_gone(record)

    def _is_gone(self, record: dict[str, Any]) -> bool:
        """Whether a process without an exit code has ended. Our own child counts as running until we have its code."""
        return record["name"] not in self.children and not processes.is_alive(record["process"])

    def _kill_all(self, name: str) -> None:
        """Kill the session and all processes that left it, repeatedly until none is left that could fork."""
        record = self._read(name)
        outer = self.children[name].pid if record and record.get("confined") and name in self.children else None
        until = time.monotonic() + KILL_SECONDS
        while time.monotonic() < until:
            living = processes.pids_with_mark(self._mark(name))
            if record is not None and record["process"]:
                living |= processes.pids_in_session(record["process"])
            for pid in living - {outer} or living:  # bubblewrap then ends by itself, with the exit code of the others
                processes.kill(pid)
            if not living:
                break
            time.sleep(POLL_SECONDS)
        self._refreshed_record(name)


def read_child_pid(reader: int) -> int | None:
    """Return the first process inside, as reported by bubblewrap; None when bubblewrap ended before.

    It reads the whole JSON object, because bubblewrap would fail if the pipe were closed too early.
    """
    output = b""
    until = time.monotonic() + SPAWN_SECONDS
    while b"}" not in output:
        ready = select.select([reader], [], [], max(0.0, until - time.monotonic()))[0]
        if not ready or not (part := os.read(reader, 4096)):
            break
        output += part
    found = re.search(rb'"child-pid": (\d+)', output)
    return int(found[1]) if found else None


def first_process(marked: set[int], confined: bool) -> int:
    """Return the first of all processes of a container; of a confined one, the first that bubblewrap started."""
    parents = {pid: fields[1] for pid in marked if (fields := processes.stat_fields(pid)) is not None}
    outermost = min((pid for pid, parent in parents.items() if int(parent) not in marked), default=min(marked))
    inside = [pid for pid, parent in parents.items() if int(parent) == outermost]
    return min(inside) if confined and inside else outermost


def environment(
    spec: RunSpec, folders: Folders, python: str, private: Path, layer: Path | None = None
) -> dict[str, str]:
    """Return a job's variables, without the agent's own ones: they may contain secrets and settings of this machine."""
    virtualenv = Path(python).parent.parent
    return {
        "PATH": os.pathsep.join([str(Path(python).parent), "/usr/local/bin", "/usr/bin", "/bin"]),
        "VIRTUAL_ENV": str(virtualenv),
        "HOME": str(private),
        "TMPDIR": str(private),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": ",".join(spec.gpus) if spec.gpu_kind == "cuda" else "",
        "SCHEDULEARN_CONTROL": str(folders.control),
        "SCHEDULEARN_SCRIBE": str(folders.scribe),
        "SCHEDULEARN_WORKSPACE": str(folders.workspace),
        "SCHEDULEARN_DATA": str(folders.data or ""),
        "SCHEDULEARN_OUTPUTS": str(folders.outputs),
        "SCHEDULEARN_CHECKPOINTS": str(folders.checkpoints),
        **({LAYER_VARIABLE: str(layer)} if layer else {}),
        **({CACHE_VARIABLE: str(folders.cache)} if folders.cache else {}),
        **({INPUTS_VARIABLE: str(folders.inputs)} if folders.inputs else {}),
        **({SECRETS_VARIABLE: str(folders.secret_files)} if folders.secrets else {}),
        **({SECRET_VARIABLES_VARIABLE: str(folders.secret_variables)} if folders.secrets else {}),
        **({NETWORK_VARIABLE: str(folders.network)} if folders.network else {}),
    }


def set_file_limits(pid: int, file_mib: int) -> None:
    """Forbid core files and files above the disk limit. Memory is limited by ``control_groups``, if at all."""
    if sys.platform != "linux":
        return
    try:
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (file_mib * 2**20, file_mib * 2**20))
    except (ProcessLookupError, PermissionError):
        pass  # it has ended already
