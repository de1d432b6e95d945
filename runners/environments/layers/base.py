"""What a layer is put over: a curated environment on this node, or only an interpreter. And the kind of node it fits."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from runners.environments.installing import uv_program
from runners.environments.layers.sandbox import BuildSandbox
from runners.environments.preparing import (
    PrepareError,
    ProgramError,
    cache_home,
    content_key,
    exclusive_lock,
    last_error,
    run,
    temporary_folder,
)
from runners.environments.targets import Target
from runners.messages.layer_failures import CommandFailed, NeedsPython, NoUv

KIND = re.compile(r"cp(3)([0-9]+)-([a-z]+)_([a-z0-9_]+)-(glibc[0-9.]+|other)-(cpu|cuda)-([0-9a-f]{12}|full)")
KIND_DIGITS = 12
LOOK_SECONDS = 10.0
"""How long an interpreter may take to start."""
PRINT_IDENTITY = "import sys; print('{}.{}'.format(*sys.version_info), sys.executable)"


@dataclass(frozen=True)
class Base:
    """An environment of this node, and the sandbox in which packages are built for it."""

    python: str
    """The interpreter, as a path in the sandbox."""
    target: Target
    packages: tuple[str, ...]
    """The exact packages (``torch==2.13.0+cpu``) that the layer may not replace; none for a full environment."""
    sandbox: BuildSandbox


def kind_of(base: Base) -> str:
    """Return a short text that is equal for nodes which share one lock."""
    target = base.target
    system = "linux" if target.glibc[0] else sys.platform
    library = f"glibc{target.glibc[0]}.{target.glibc[1]}" if target.glibc[0] else "other"
    pins = content_key(*sorted(base.packages))[:KIND_DIGITS] if base.packages else "full"
    python = target.python.replace(".", "")
    return f"cp{python}-{system}_{target.machine}-{library}-{'cuda' if target.cuda else 'cpu'}-{pins}"


def describe_kind(kind: str) -> str:
    """Return a kind for people: ``Python 3.11, x86_64, CPU``; the kind itself if it is of another release."""
    found = KIND.fullmatch(kind)
    if found is None:
        return kind
    major, minor, system, machine, _, device, _ = found.groups()
    place = machine if system == "linux" else f"{system} {machine}"
    return f"Python {major}.{minor}, {place}, {'GPU (CUDA)' if device == 'cuda' else 'CPU'}"


def find_python(version: str) -> str:
    """Return an interpreter of this machine with this version (``3.12``; empty for ours) that has no packages.

    It is an empty virtual environment: a system's python sees the packages of the system. Raises PrepareError.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = getattr(sys, "_base_executable", sys.executable) if version in ("", here) else installed_python(version)
    if found is None:
        raise PrepareError(NeedsPython(version, here))
    uv = require_uv()
    folder = cache_home() / "envs" / f"bare-{content_key(str(Path(found).resolve()), version or here)[:KIND_DIGITS]}"
    with exclusive_lock(cache_home() / "locks" / folder.name, lambda percent, step: None, 0):
        if not (folder / "bin" / "python").exists():
            log = cache_home() / "logs" / f"{folder.name}.log"
            with temporary_folder(folder.parent, ".bare-") as work:
                try:
                    run([uv, "venv", "--quiet", "--no-project", "--no-config", "--python", found, work / "made"], log)
                except ProgramError as error:
                    raise PrepareError(CommandFailed(last_error(error.tail))) from error
                shutil.rmtree(folder, ignore_errors=True)
                (work / "made").rename(folder)
    return str(folder / "bin" / "python")


def installed_python(version: str) -> str | None:
    """Return the first interpreter on PATH that runs and has this version, else None.

    Version managers put a program for each version that any of their users has; it only prints an error where none is chosen.
    """
    for folder in os.get_exec_path():
        program = shutil.which(f"python{version}", path=folder)
        if program is None:
            continue
        try:
            run = subprocess.run(
                [program, "-I", "-c", PRINT_IDENTITY],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LOOK_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        found, _, executable = run.stdout.strip().partition(" ")
        if found == version and executable:
            return executable
    return None


def require_uv() -> str:
    """Return the path of uv. Raises PrepareError."""
    uv = uv_program()
    if uv is None:
        raise PrepareError(NoUv())
    return uv
