"""Resolves the packages of an environment on a machine, and fetches them as wheels.

An image is built from a folder of wheels without any network, so that only the machine's own pip and its configuration
determine where packages come from.
"""

import json
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from runners.environments.images import Entry
from runners.environments.installing import ONLY_WHEELS, PIP, index_option, resolve
from runners.environments.preparing import (
    PrepareError,
    ProgramError,
    Progress,
    cache_home,
    content_key,
    exclusive_lock,
    explain,
    require_space,
    run,
    temporary_folder,
)
from runners.environments.targets import Target, cross_install_options
from runners.messages.environment_failures import NoFramework, OnlyGpuBuilds, Stage
from runners.messages.environments import DownloadingPackages, ResolvingPackages

logger = logging.getLogger(__name__)

CUDA_PACKAGE = re.compile(r"(nvidia-|cuda-|triton|pytorch-triton).*|torch==[^+]*\+(cu|rocm).*")
"""Packages that only a machine with GPUs needs; they have several GiB."""


@dataclass(frozen=True, slots=True)
class Pins:
    """The exact packages of an environment on one kind of machine."""

    packages: tuple[str, ...]
    index: str = ""
    """A package index in addition to those that pip is configured with."""


@dataclass(frozen=True, slots=True)
class Framework:
    """The package that Horovod is compiled against: ``torch``, ``tensorflow`` or ``tensorflow-cpu``."""

    package: str
    version: str
    """The version with its local label (``2.13.0+cpu``), by which wheels of Horovod differ."""

    @property
    def is_torch(self) -> bool:
        return self.package == "torch"

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


def recipe_key(entry: Entry, target: Target) -> str:
    """Return a hash of the required packages, the target and the index."""
    index = os.environ.get("SCHEDULEARN_TORCH_INDEX", "")
    files = [entry.requirements_on(target.cuda), entry.constraints_on(target.cuda)]
    requirements, *constraints = (file.read_bytes() for file in files if file is not None)
    return content_key("wheelhouse 1", requirements, target.key_text, index, *constraints)


def pinned_packages(entry: Entry, target: Target, progress: Progress, percent: int) -> Pins:
    """Return the exact packages. They are resolved once per content of the recipe; later starts need no network.

    Raises PrepareError, also for a machine without GPUs whose index has only packages for GPUs.
    """
    key = recipe_key(entry, target)
    cached = cache_home() / "pins" / f"{key}.json"
    with exclusive_lock(cache_home() / "locks" / f"pins-{key}", progress, percent):
        if (pins := read_pins(cached)) is not None:
            return pins
        progress(percent, ResolvingPackages())
        log = cache_home() / "logs" / f"resolve-{entry.key}.log"
        log.unlink(missing_ok=True)
        try:
            pins = choose_pins(entry, target, log)
        except ProgramError as error:
            raise explain(error, Stage("resolving"), log) from error
        part = make_folder(cached.parent) / f".{key}.part"
        part.write_text(json.dumps(asdict(pins)))
        part.replace(cached)
        return pins


def read_pins(cached: Path) -> Pins | None:
    try:
        found = json.loads(cached.read_text())
        return Pins(tuple(found["packages"]), found["index"])
    except (OSError, ValueError, LookupError):
        return None


def choose_pins(entry: Entry, target: Target, log: Path) -> Pins:
    """Resolve the packages. With GPUs the usual index has the right torch. Without, it may have only the build for GPUs,
    which has ten times the size: then the index of the CPU builds is used as well."""
    lines = [line for line in entry.requirements_on(target.cuda).read_text().splitlines() if is_package(line)]
    chosen = os.environ.get("SCHEDULEARN_TORCH_INDEX", "") if entry.torch else ""
    pins = Pins(resolve_constrained(entry, lines, target, log, chosen), chosen)
    if target.cuda or not cuda_packages(pins.packages):
        return pins
    if entry.torch is not None:
        small = [f"torch=={entry.torch}+cpu" if line.startswith("torch==") else line for line in lines]
        for index in filter(None, (chosen, entry.torch_cpu_index)):
            try:
                pins = Pins(resolve(small, target, log, index), index)
            except ProgramError:
                continue
            if not cuda_packages(pins.packages):
                return pins
    raise PrepareError(OnlyGpuBuilds(cuda_packages(pins.packages)[0], str(entry.torch_cpu_index)))


def resolve_constrained(entry: Entry, lines: Sequence[str], target: Target, log: Path, index: str) -> tuple[str, ...]:
    """Resolve with the versions of NVIDIA's libraries that this release was made with.

    A lab's own index may have PyTorch for another CUDA release, which these do not fit: then they are ignored.
    """
    constraints = entry.constraints_on(target.cuda)
    if constraints is not None:
        try:
            return resolve([*lines, f"-c {constraints}"], target, log, index)
        except ProgramError as error:
            logger.warning(
                "%s does not fit the offered packages and is ignored: %s", constraints.name, error.tail[-300:]
            )
    return resolve(lines, target, log, index)


def is_package(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("#")


def cuda_packages(packages: Sequence[str]) -> list[str]:
    return [each for each in packages if CUDA_PACKAGE.fullmatch(each)]


def find_framework(pins: Pins) -> Framework:
    """Return the framework among these packages."""
    versions = dict(each.split("==", 1) for each in pins.packages)
    for package in ("torch", "tensorflow", "tensorflow-cpu"):
        if package in versions:
            return Framework(package, versions[package])
    raise PrepareError(NoFramework())


def wheelhouse(
    entry: Entry, target: Target, pins: Pins, progress: Progress, percent: tuple[int, int] = (0, 30)
) -> Path:
    """Return a folder with the wheel of each package, fetched once per content of the recipe."""
    key = recipe_key(entry, target)
    folder = cache_home() / "wheelhouse" / key
    low, high = percent
    with exclusive_lock(cache_home() / "locks" / f"house-{key}", progress, low):
        if folder.is_dir():
            return folder
        if not pins.packages:
            return make_folder(folder)
        require_space(cache_home(), entry.disk_mib if not target.cuda else entry.disk_mib * 3)
        log = cache_home() / "logs" / f"fetch-{entry.key}.log"
        log.unlink(missing_ok=True)
        with temporary_folder(folder.parent, ".part-") as work:
            part = make_folder(work / "wheels")

            def tick(seconds: float, output: str) -> None:
                here = len(list(part.glob("*.whl")))
                done = min(1.0, here / max(1, len(pins.packages)))
                step = DownloadingPackages(here, len(pins.packages), seconds=int(seconds))
                progress(low + int((high - low) * done), step)

            fetch = ["download", ONLY_WHEELS, "--no-deps", "-d", str(part), *index_option(pins.index)]
            try:
                run([*PIP, *fetch, *cross_install_options(target), *pins.packages], log, tick)
            except ProgramError as error:
                raise explain(error, Stage("downloading"), log) from error
            part.rename(folder)
    return folder


def make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
