"""The command line that runs the first process of a job inside bubblewrap: what it sees of this machine, and what it may do.

``command_line`` is the whole policy. A job sees the system read-only, its environment, its own folders, and its own processes,
IPC and /tmp. A container without peers has an empty network; ranks and driver meet at the machine's own 127.0.0.1.

An agent that is not root makes a user namespace, in which the job keeps the agent's user id. A root agent gives each job its
own user id instead: root can write to much of /proc even without capabilities (``kernel/core_pattern`` runs a program as root
on the host).
"""

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runners.host.interpreters import InterpreterPaths
from runners.runtime import LAUNCH_PATHS
from runners.runtimes.host_config import Owner

SYSTEM_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Links into /usr on most systems, real folders on others."""
SYSTEM_FOLDERS = ("/usr", "/nix/store", "/opt/cuda", "/opt/rocm")
VISIBLE_ETC = (
    "alternatives",
    "ca-certificates.conf",
    "crypto-policies",
    "gai.conf",
    "group",
    "host.conf",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "OpenCL",
    "os-release",
    "passwd",
    "pki/ca-trust/extracted",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "resolv.conf",
    "services",
    "ssl/ca-bundle.pem",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "static",
    "timezone",
)
"""Visible parts of /etc: names, certificates, time and libraries. Not ssl/private, nor anything else that may contain keys or
passwords."""
PROCESSORS = ("/sys/devices/system/cpu", "/sys/devices/system/node")
"""Where PyTorch and OpenMP count processors."""
VISIBLE_PATHS = (*SYSTEM_FOLDERS, *(f"/etc/{name}" for name in VISIBLE_ETC), *PROCESSORS)
GPU_CONTROLS = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
    "/dev/nvidia-caps",
    "/dev/dxg",
)
GPU_INFORMATION = Path("/proc/driver/nvidia/gpus")
PRIVATE_FOLDER = Path("/run/job")
"""HOME and TMPDIR of a job. It is short: the path of a socket has 107 characters at most, and the folder outside is longer."""
TEMPORARY = "/tmp"  # noqa: S108  the job's own
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The options of bubblewrap that work on this machine; see ``runners/runtimes/confinement_check.py``."""

    program: str
    own_processes: bool = True
    """False if the system refuses a new /proc: jobs then see the processes of this machine."""
    nested_users: bool = True
    """Whether jobs may make user namespaces themselves; False if bubblewrap (0.8) can prevent it."""
    own_network: bool = False
    """Whether a job can get a network that has nothing but a loopback."""
    sizes: bool = False
    """Whether bubblewrap (0.7) can limit /tmp and /dev/shm; else each may take half of the memory."""


@dataclass(frozen=True, slots=True)
class JobView:
    """What one job sees in addition to the system. All paths except ``private`` and ``mounts`` are the same inside and outside."""

    owner: Owner
    is_root: bool
    """Whether the agent is root; the job then gets the owner's user id by ``setpriv``."""
    python: InterpreterPaths
    cwd: Path
    private: Path
    """Seen as ``PRIVATE_FOLDER``."""
    read_only: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    mounts: tuple[tuple[Path, Path, bool], ...] = ()
    """Folders that it sees under other paths, and whether it may write there: its datasets."""
    devices: tuple[str, ...] = ()
    """The device files of its GPUs; with any, /sys is visible too."""
    tmp_mib: int = 1024
    shm_mib: int = 1024
    groups: tuple[int, ...] = ()
    """The groups of the job's user in addition to its own, if the agent is root."""
    hosts: Path | None = None
    """Seen as /etc/hosts, where its name has another address than that of the machine: in a network of its own."""
    accounts: Path | None = None
    """Seen as /etc/passwd, where its user id has no account on the machine."""
    own_network: bool = False
    """Whether its network has nothing but a loopback."""
    isolated: bool = False
    """Whether it also ends with the process that started it: builds of packages. Jobs outlive their agent."""


def command_line(sandbox: Sandbox, view: JobView, command: Sequence[str]) -> list[str]:
    """Return ``command`` inside bubblewrap. Mounts are in an order in which none hides another."""
    read_only = {*view.python.folders, *view.read_only}
    binds = [(path, "--ro-bind", path) for path in read_only] + [(path, "--bind", path) for path in view.writable]
    binds += [(target, "--bind" if writable else "--ro-bind", source) for source, target, writable in view.mounts]
    binds.sort(key=lambda bind: (len(bind[0].parts), bind))
    made = (
        *(target for target, _, _ in binds),
        *(link for link, _ in view.python.links),
        view.cwd / "runners",
        PRIVATE_FOLDER,
    )
    return [
        sandbox.program,
        *_namespace_options(sandbox, view),
        *(_parent_options(map(Path, VISIBLE_PATHS)) if view.is_root else []),
        *_system_options(),
        *(["--proc", "/proc"] if sandbox.own_processes else ["--ro-bind", "/proc", "/proc"]),
        *_tmpfs_options(sandbox, TEMPORARY, view.tmp_mib),
        *_device_options(sandbox, view),
        *(_parent_options(made) if view.is_root else []),
        *(word for target, option, source in binds for word in (option, str(source), str(target))),
        *(["--ro-bind", str(view.hosts), "/etc/hosts"] if view.hosts else []),
        *(["--ro-bind", str(view.accounts), "/etc/passwd"] if view.accounts else []),
        *("--bind", str(view.private), str(PRIVATE_FOLDER)),
        *(word for link, target in view.python.links for word in ("--symlink", target, str(link))),
        "--remount-ro",
        "/dev",
        "--remount-ro",
        "/",
        "--chdir",
        str(view.cwd),
        "--",
        *(_setpriv_command(view.owner, view.groups) if view.is_root else []),
        *command,
    ]


def _namespace_options(sandbox: Sandbox, view: JobView) -> list[str]:
    capabilities = ["--cap-drop", "ALL"]
    users = ["--unshare-user", *([] if sandbox.nested_users else ["--disable-userns"])]
    if view.is_root:  # only until ``setpriv``
        users = []
        for name in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            capabilities += ["--cap-add", name]
    processes = ["--unshare-pid"] if sandbox.own_processes else []
    if view.own_network or view.isolated:
        processes.append("--unshare-net")
    if view.isolated:
        processes.append("--die-with-parent")  # a new user id clears that, so bubblewrap stays the first process
    elif sandbox.own_processes:
        processes.append("--as-pid-1")
    return [*users, *processes, "--unshare-ipc", "--unshare-uts", "--new-session", *capabilities]


def _setpriv_command(owner: Owner, groups: Sequence[int]) -> list[str]:
    ids = ["--reuid", str(owner.uid), "--regid", str(owner.gid)]
    others = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
    return ["setpriv", *ids, *others, "--inh-caps=-all", "--bounding-set=-all", "--"]


def _system_options() -> list[str]:
    options = []
    for path in VISIBLE_PATHS:
        options += ["--ro-bind-try", path, path]
    for path in SYSTEM_LINKS:
        if Path(path).is_symlink():
            options += ["--symlink", str(Path(path).readlink()), path]
        else:
            options += ["--ro-bind-try", path, path]
    return options


def _tmpfs_options(sandbox: Sandbox, path: str, mib: int) -> list[str]:
    return (
        ["--perms", "1777", "--size", str(max(1, mib) * MIB), "--tmpfs", path] if sandbox.sizes else ["--tmpfs", path]
    )


def _device_options(sandbox: Sandbox, view: JobView) -> list[str]:
    options = ["--dev", "/dev", *_tmpfs_options(sandbox, "/dev/shm", view.shm_mib)]  # noqa: S108  the job's own
    for device in view.devices:
        options += ["--dev-bind-try", device, device]
    return [*options, *(["--ro-bind", "/sys", "/sys"] if view.devices else [])]


def _parent_options(paths: Iterable[Path]) -> list[str]:
    """Return options that make the folders above each path accessible to other users: bubblewrap would make them root's."""
    above = {parent for path in paths for parent in path.parents if len(parent.parts) > 1}
    options = []
    for folder in sorted(above, key=lambda path: (len(path.parts), path)):
        options += ["--perms", "0755", "--dir", str(folder)]
    return options


def launch_paths(top: Path) -> tuple[Path, ...]:
    """Return the paths of what runs first in a job, and of the training library. ``top`` has the package ``runners``."""
    return tuple(path for name in LAUNCH_PATHS if (path := top / "runners" / name).exists())


MIG_CAPABILITIES = "/dev/nvidia-caps"
"""Without its files no MIG instance can be opened."""


def gpu_devices(uuids: Iterable[str], listed: Path = GPU_INFORMATION) -> tuple[str, ...]:
    """Return the device files of these GPUs from the driver's list; of all GPUs if one of them is not listed (MIG)."""
    minors = {}
    for information in sorted(listed.glob("*/information")):
        fields = dict(
            re.findall(r"^(GPU UUID|Device Minor):\s*(\S+)", information.read_text(errors="replace"), re.MULTILINE)
        )
        minors[fields.get("GPU UUID", "")] = fields.get("Device Minor", "")
    wanted = list(uuids)
    if all(minors.get(uuid, "").isdecimal() for uuid in wanted):
        own = [f"/dev/nvidia{minors[uuid]}" for uuid in wanted]
    else:
        own = [*sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*")), MIG_CAPABILITIES]
    return (*own, *GPU_CONTROLS)


def make_gpu_devices() -> None:
    """Have the driver make the device that CUDA opens first. It does so by a set-uid program, which cannot run inside."""
    program = shutil.which("nvidia-modprobe")
    if program is not None and not Path("/dev/nvidia-uvm").exists():
        subprocess.run([program, "-u", "-c=0"], capture_output=True, check=False, timeout=30)
