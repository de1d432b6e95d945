"""Fetching packages once, on the host, with the machine's own pip and whatever that is configured to use.

An image is then built from a folder of wheels without any network.
"""

import json
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from runners.images import Entry
from runners.preparing import (
    PrepareError,
    ProgramError,
    Progress,
    alone,
    cache_home,
    clock,
    content_key,
    explain,
    need_space,
    run,
)

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
PROBE_SECONDS = 10
OLDEST_GLIBC = 5
"""manylinux1 is glibc 2.5."""


@dataclass(frozen=True, slots=True)
class Target:
    """For which interpreter packages are wanted: this machine's, or an image's."""

    python: str
    """``3.11``"""
    glibc: tuple[int, int]
    machine: str
    """``x86_64``"""
    cuda: bool = False

    @property
    def tags(self) -> list[str]:
        """Platforms whose wheels run there, the best first. pip matches each exactly."""
        new = [f"manylinux_2_{minor}_{self.machine}" for minor in range(self.glibc[1], OLDEST_GLIBC - 1, -1)]
        return [*new, f"manylinux2014_{self.machine}", f"manylinux2010_{self.machine}", f"manylinux1_{self.machine}"]

    @property
    def words(self) -> str:
        glibc = ".".join(str(part) for part in self.glibc)
        return f"{self.python} {glibc} {self.machine} {'cuda' if self.cuda else 'cpu'}"


def this_machine(cuda: bool) -> Target:
    major, minor = sys.version_info[:2]
    return Target(f"{major}.{minor}", glibc_of(platform.libc_ver()), platform.machine(), cuda)


def glibc_of(libc: tuple[str, str]) -> tuple[int, int]:
    """(0, 0) where there is no glibc (macOS, musl): such a machine prepares for itself only."""
    name, version = libc
    if name != "glibc":
        return (0, 0)
    first, second = version.split(".")[:2]
    return (int(first), int(second))


def cross(target: Target) -> list[str]:
    """pip's options for packages of another interpreter; none for our own."""
    if target == this_machine(target.cuda):
        return []
    platforms = [option for tag in target.tags for option in ("--platform", tag)]
    return ["--only-binary=:all:", "--implementation", "cp", "--python-version", target.python, *platforms]


def wheelhouse(entry: Entry, target: Target, progress: Progress, percent: tuple[int, int] = (0, 30)) -> Path:
    """A folder with every wheel of the recipe, fetched once per content of the recipe."""
    index = os.environ.get("SCHEDULEARN_TORCH_INDEX", "")
    requirements = entry.requirements_on(target.cuda)
    key = content_key("wheelhouse 1", requirements.read_bytes(), target.words, index)
    folder = cache_home() / "wheelhouse" / key
    if folder.is_dir():
        return folder
    low, high = percent
    wanted = count_requirements(requirements)
    with alone(cache_home() / "locks" / f"house-{key}", progress, low):
        if folder.is_dir():
            return folder
        need_space(cache_home(), entry.disk_mib if not target.cuda else entry.disk_mib * 3)
        progress(low, "asking where to fetch packages")
        options = torch_index(entry, target)
        log = cache_home() / "logs" / f"fetch-{entry.key}.log"
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=make(folder.parent)))
        try:

            def tick(seconds: float, tail: str) -> None:
                here = len(list(part.glob("*.whl")))
                done = min(1.0, max(here / wanted, seconds / 600))
                progress(low + int((high - low) * done), f"fetching packages for {clock(seconds)}")

            # Only wheels: nothing that a package index serves is run here.
            fetch = ["download", "--only-binary=:all:", "-r", str(requirements), "-d", str(part)]
            run([*PIP, *fetch, *cross(target), *options], log, tick)
            part.rename(folder)
        except ProgramError as error:
            raise explain(error, "Fetching the packages", log) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def make(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def count_requirements(requirements: Path) -> int:
    lines = [line.strip() for line in requirements.read_text().splitlines()]
    return max(1, len([line for line in lines if line and not line.startswith("#")]))


def torch_index(entry: Entry, target: Target) -> list[str]:
    """Where torch comes from. With GPUs the plain index has the right build; without, it may offer only that one,
    which runs on a processor too but is ten times the size."""
    if entry.torch is None:
        return []
    if chosen := os.environ.get("SCHEDULEARN_TORCH_INDEX"):
        return ["--extra-index-url", chosen]
    if target.cuda or entry.torch_cpu_index is None or plain_torch_is_for_cpu(entry, target):
        return []
    return ["--extra-index-url", entry.torch_cpu_index] if reachable(entry.torch_cpu_index) else []


def plain_torch_is_for_cpu(entry: Entry, target: Target) -> bool:
    """What this machine's pip would choose by itself, from its metadata alone."""
    with tempfile.TemporaryDirectory(prefix="schedulearn-pip-") as folder:
        report = Path(folder) / "report.json"
        ask = ["install", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:", "-q"]
        where = ["--target", folder] if cross(target) else []
        try:
            log = Path(folder) / "log"
            run([*PIP, *ask, *cross(target), *where, "--report", report, f"torch=={entry.torch}"], log, seconds=300)
            found: dict[str, Any] = json.loads(report.read_text())
            return is_cpu_build(found["install"][0]["metadata"])
        except (ProgramError, OSError, ValueError, LookupError):
            return False


def is_cpu_build(metadata: dict[str, Any]) -> bool:
    version, needs = str(metadata["version"]), " ".join(metadata.get("requires_dist") or [])
    return version.endswith("+cpu") or ("nvidia" not in needs and "cuda" not in needs)


def reachable(url: str) -> bool:
    try:
        return httpx.get(f"{url.rstrip('/')}/torch/", timeout=PROBE_SECONDS, follow_redirects=True).is_success
    except httpx.HTTPError:
        return False


@dataclass(frozen=True, slots=True)
class Framework:
    """What Horovod is compiled against: ``torch``, ``tensorflow`` or ``tensorflow-cpu``."""

    package: str
    version: str
    """With its local label (``2.13.0+cpu``): the wheels of Horovod differ by it."""

    @property
    def is_torch(self) -> bool:
        return self.package == "torch"

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


def framework_of(house: Path) -> Framework:
    """The one whose wheel was fetched."""
    for package in ("torch", "tensorflow", "tensorflow-cpu"):
        if names := sorted(path.name for path in house.glob(f"{package.replace('-', '_')}-[0-9]*.whl")):
            return Framework(package, names[0].split("-")[1].replace("%2B", "+"))
    raise PrepareError("The fetched packages hold neither torch nor TensorFlow.", f"Remove {house} and try again.")
