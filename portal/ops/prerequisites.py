"""Checks what ``make run`` and ``make demo`` need before anything is installed, and prints how to fix what is missing.

``python3 portal/ops/prerequisites.py VENV run|demo`` runs with the system's Python: it uses only the standard library and
imports nothing else of this project. It exits with 1 when Schedulearn cannot start.
"""

import errno
import fcntl
import importlib.util
import os
import shlex
import shutil
import socket
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_PORT = 8000
UNPRIVILEGED_PORT, MAX_PORT = 1024, 65535
HOME_MIB = 512
"""The minimum of free space: with less, even the database could not grow."""
VENV_MIB = 600
"""Space for the portal's packages."""
ENVIRONMENTS_MIB = 6 * 1024
"""Space for PyTorch twice (without and with Horovod), the downloaded packages, and compiling Horovod."""
CONNECT_SECONDS = 1


@dataclass(frozen=True)
class Fault:
    """A known fault of Python's archive modules, which read uploads."""

    name: str
    effect: str
    fixed_in: Mapping[tuple[int, int], int]
    """The first patch release without it, by minor version; later minor versions never had it."""
    is_fixed: Callable[[], bool]
    """Returns whether the installed module has the fix: distributions apply it without a new version number."""


def refuses_negative_offsets() -> bool:
    try:
        tarfile.TarInfo()._block(-1)  # type: ignore[attr-defined]
    except tarfile.TarError:
        return True
    return False


FAULTS = (
    Fault(
        "CVE-2024-6232",
        "a crafted tar header takes minutes to read",
        {(3, 11): 10, (3, 12): 6, (3, 13): 0},
        lambda: hasattr(tarfile, "_header_length_prefix_re"),
    ),
    Fault(
        "CVE-2025-8194",
        "a crafted tar file is read without end",
        {(3, 11): 14, (3, 12): 12, (3, 13): 6},
        refuses_negative_offsets,
    ),
    Fault(
        "CVE-2024-0450",
        "entries of a zip file may overlap",
        {(3, 11): 8, (3, 12): 2},
        lambda: "_end_offset" in zipfile.ZipInfo.__slots__,
    ),
)


@dataclass(frozen=True)
class Finding:
    """Something that is missing, and the command that fixes it. ``fatal`` means that nothing can start."""

    text: str
    fix: str
    fatal: bool = False


@dataclass(frozen=True)
class Plan:
    """The folders and the address that ``make run`` will use, from its environment variables."""

    home: Path
    cache: Path
    venv: Path
    host: str
    port: str

    @classmethod
    def read(cls, env: Mapping[str, str], venv: str) -> "Plan":
        cache = env.get("SCHEDULEARN_CACHE") or str(
            Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "schedulearn"
        )
        return cls(
            home=Path(env.get("SCHEDULEARN_HOME") or ROOT / "var").expanduser().resolve(),
            cache=Path(cache).expanduser().resolve(),
            venv=(ROOT / venv).resolve(),
            host=env.get("HOST") or "127.0.0.1",
            port=env.get("PORT") or str(DEFAULT_PORT),
        )


def findings(plan: Plan, docker_host: str | None = None) -> Iterator[Finding]:
    """Yield what is missing for a lab, fatal or not."""
    yield from folder_findings(plan.cache, "packages for jobs", "SCHEDULEARN_CACHE=FOLDER")
    yield from cache_findings(plan.cache)
    yield from demo_findings(plan)
    yield from compiler_findings(docker_host)
    yield from confinement_findings(docker_host)


def demo_findings(plan: Plan) -> Iterator[Finding]:
    """Yield what is missing for a demo lab, which runs no jobs; other labs need it too."""
    yield from python_findings(sys.version_info[:3])
    yield from venv_findings(plan.venv)
    yield from folder_findings(plan.home, "Schedulearn's data", "SCHEDULEARN_HOME=FOLDER")
    yield from space_findings(plan.home, HOME_MIB, "Schedulearn's data", "SCHEDULEARN_HOME=FOLDER")
    if not exists(plan.venv / "installed"):
        yield from space_findings(plan.venv, VENV_MIB, "the portal's packages", "VENV=FOLDER")
    if is_running(plan.home):
        yield Finding(
            f"Schedulearn is already running with the data in {plan.home}.",
            "Open it in the browser, or stop it with Ctrl-C where it was started. "
            "For a second one: make run SCHEDULEARN_HOME=FOLDER PORT=8001",
            fatal=True,
        )
    else:
        yield from port_findings(plan.host, plan.port)


def faults_of(version: tuple[int, int, int]) -> list[Fault]:
    """Return the faults of this Python, whose version is ``version``."""
    minor, patch = version[:2], version[2]
    return [fault for fault in FAULTS if patch < fault.fixed_in.get(minor, 0) and not fault.is_fixed()]


def python_findings(version: tuple[int, int, int]) -> Iterator[Finding]:
    """Yield a note about known faults: uploads are unpacked in a process with limits, so only the upload itself fails."""
    if faults := faults_of(version):
        effects = "; ".join(f"{fault.effect} ({fault.name})" for fault in faults)
        patch = max(fault.fixed_in[version[:2]] for fault in faults)
        yield Finding(
            f"Python {'.'.join(map(str, version))} has known faults in reading uploaded archives: {effects}.",
            f"Install Python {version[0]}.{version[1]}.{patch} or newer, or your distribution's security updates. "
            "Until then the limits on unpacking contain such an upload.",
        )


def venv_findings(venv: Path) -> Iterator[Finding]:
    """Check the virtual environment and Python's venv module, which is a separate package on Debian and Ubuntu.

    A virtual environment that was made by another Python cannot be used.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if exists(venv / "installed") and not exists(venv / "lib" / f"python{version}" / "site-packages" / "django"):
        yield Finding(
            f"The packages in {venv} were installed for another Python than {version}.",
            f"Remove them, so that they are installed again: rm -r {shlex.quote(str(venv))}",
            fatal=True,
        )
        return
    if exists(venv / "bin" / "python"):
        return
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        yield Finding(
            f"Python {version} at {sys.executable} lacks its venv module.",
            f"Debian or Ubuntu: sudo apt-get install python{version}-venv",
            fatal=True,
        )
    yield from folder_findings(venv, "the portal's packages", "VENV=FOLDER")


def folder_findings(folder: Path, what: str, choose: str) -> Iterator[Finding]:
    """Check whether files can be created in a folder, or the folder itself."""
    existing = nearest_existing(folder)
    try:
        if not existing.is_dir():
            raise NotADirectoryError(f"{existing} is a file")
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        yield Finding(
            f"{what[0].upper()}{what[1:]} cannot be kept in {folder} ({error.strerror or error}).",
            f"Use a folder that you may write to: make run {choose}",
            fatal=True,
        )


def nearest_existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    while not exists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def exists(path: Path) -> bool:
    """Return whether the path exists; False too where a parent folder may not be entered."""
    try:
        return path.exists()
    except OSError:
        return False


def free_mib(folder: Path) -> int:
    return shutil.disk_usage(nearest_existing(folder)).free // 2**20


def space_findings(folder: Path, needed_mib: int, what: str, choose: str) -> Iterator[Finding]:
    free = free_mib(folder)
    if free < needed_mib:
        yield Finding(
            f"Only {free} MiB are free in {folder}; {what} need {needed_mib} MiB.",
            f"Free some space (du -xh -d1 {nearest_existing(folder)} | sort -h shows what takes it), "
            f"or use another folder: make run {choose}",
            fatal=True,
        )


def cache_findings(cache: Path) -> Iterator[Finding]:
    """Yield a note when there is little space for environments, unless one is already prepared."""
    free = free_mib(cache)
    if free < ENVIRONMENTS_MIB and not list(cache.glob("envs/*/.complete")):
        yield Finding(
            f"Only {free / 1024:.1f} GiB are free in {cache}; preparing PyTorch and Horovod for jobs needs "
            f"{ENVIRONMENTS_MIB // 1024} GiB.",
            "Free some space, or use another folder: make run SCHEDULEARN_CACHE=FOLDER",
        )


def is_running(home: Path) -> bool:
    """Return whether ``manage.py up`` holds this home's lock."""
    try:
        with (home / "up.lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock yet, or a folder that cannot be used at all: folder_findings has the reason
        return False
    return False


def port_findings(host: str, port: str) -> Iterator[Finding]:
    if not port.isdecimal() or not 1 <= int(port) <= MAX_PORT:
        yield Finding(f"PORT must be a number from 1 to {MAX_PORT}, not {port!r}.", "make run PORT=8001", fatal=True)
        return
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        text, fix = f"Nothing can listen at {host}", "Use an address of this machine: make run HOST=127.0.0.1"
        if isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES):
            other = int(port) + 1 if UNPRIVILEGED_PORT <= int(port) < MAX_PORT else DEFAULT_PORT
            text, fix = f"Port {port} of {host} cannot be used", f"Use another port: make run PORT={other}"
        yield Finding(f"{text} ({getattr(error, 'strerror', error)}).", fix, fatal=True)


def compiler_findings(docker_host: str | None) -> Iterator[Finding]:
    """Check for a compiler: Horovod is compiled once, in an image with Docker Engine, else on this machine."""
    missing = missing_tools()
    if missing and not is_docker_running(docker_host):
        yield Finding(
            f"Horovod must be compiled once for elastic jobs, and this machine lacks {', '.join(missing)}.",
            "Debian or Ubuntu: sudo apt-get install g++ make python3-dev. Fedora: sudo dnf install gcc-c++ make "
            "python3-devel. Or start a Docker Engine. Other jobs run without.",
        )


def confinement_findings(docker_host: str | None) -> Iterator[Finding]:
    """Check for confinement: without containers, bubblewrap keeps jobs from this user's files and processes."""
    if sys.platform == "linux" and not has_bubblewrap() and not is_docker_running(docker_host):
        yield Finding(
            "Jobs will run as ordinary processes, which can read and change all of your files.",
            "To confine them, install bubblewrap (Debian or Ubuntu: sudo apt install bubblewrap) or start a Docker Engine.",
        )


def has_bubblewrap() -> bool:
    return shutil.which("bwrap") is not None


def missing_tools() -> list[str]:
    missing = [] if shutil.which("c++") or shutil.which("g++") else ["a C++ compiler"]
    missing += [] if shutil.which("make") else ["make"]
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return missing if headers.exists() else [*missing, "Python.h"]


def is_docker_running(address: str | None) -> bool:
    address = address or "unix:///var/run/docker.sock"
    if not address.startswith("unix://"):
        return True  # the agent will find out: asking over the network could take long
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CONNECT_SECONDS)
        try:
            probe.connect(address.removeprefix("unix://"))
        except OSError:
            return False
    return True


def main(venv: str, command: str) -> int:
    plan = Plan.read(os.environ, venv)
    if command == "demo":
        found = list(demo_findings(replace(plan, home=plan.home / "demo")))
    else:
        found = list(findings(plan, os.environ.get("DOCKER_HOST")))
    fatal = [each for each in found if each.fatal]
    for each in fatal or found:
        fix = each.fix.replace("make run", f"make {command}")
        sys.stderr.write(f"{'Cannot start' if each.fatal else 'Note'}: {each.text}\n  {fix}\n")
    return 1 if fatal else 0


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or [".venv", "run"])))
