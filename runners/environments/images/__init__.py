"""The curated environments: one folder each, with a recipe (environment.toml) and a pinned requirements.txt.

The same recipe makes the Docker image and, for the process runtime, a virtual environment. One with a base is a layer on it.
"""

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
BARE_KEY = "bare"
BARE_PYTHON = re.compile(rf"{BARE_KEY}-(3\.[0-9]{{1,2}})")


@dataclass(frozen=True, slots=True)
class Horovod:
    """A source distribution to compile once, identified by its hash."""

    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One environment of the catalogue."""

    key: str
    title: str
    description: str
    packages: tuple[str, ...]
    """The import names that it offers, in addition to those of its base."""
    position: int
    folder: Path
    torch: str | None = None
    torch_cpu_index: str | None = None
    """The index of the build without CUDA, for machines whose own index has only the large build."""
    horovod: Horovod | None = None
    check: str = ""
    """A line of Python that must run before the environment counts as ready."""
    disk_mib: int = 2000
    """The free space that must be available before it is prepared."""
    on_demand: bool = False
    """Nodes prepare it only once a job asks for it."""
    base: str = ""
    """The key of the environment to which its packages are added, as a layer that one node builds for all of its kind."""
    hidden: bool = False
    """It is only a base, and no job chooses it."""
    python: str = ""
    """The version of Python, for the base of full environments that name one; empty: that of the node or base image."""

    @property
    def requirements(self) -> Path:
        return self.folder / "requirements.txt"

    def requirements_on(self, cuda: bool) -> Path:
        """Return the requirements file; packages for GPUs have a separate file where they differ."""
        own = self.folder / "requirements-cuda.txt"
        return own if cuda and own.exists() else self.requirements

    @property
    def is_bare(self) -> bool:
        """Whether it is an interpreter without packages."""
        return self.key == BARE_KEY or bool(self.python)

    @property
    def lines(self) -> tuple[str, ...]:
        """The packages of the requirements file."""
        lines = (line.strip() for line in self.requirements.read_text().splitlines())
        return tuple(line for line in lines if line and not line.startswith("#"))

    def constraints_on(self, cuda: bool) -> Path | None:
        """Return the file with exact versions of PyTorch's GPU dependencies, for some of which it requires only ranges."""
        return FOLDER / "constraints-cuda.txt" if cuda and self.torch is not None else None


def read(folder: Path) -> Entry:
    recipe = tomllib.loads((folder / "environment.toml").read_text())
    horovod = recipe.pop("horovod", None)
    return Entry(
        **{**recipe, "packages": tuple(recipe["packages"])},
        key=folder.name,
        folder=folder,
        horovod=Horovod(**horovod) if horovod else None,
    )


@cache
def catalogue() -> tuple[Entry, ...]:
    """Return every environment, in the order in which they are shown."""
    found = [read(path.parent) for path in FOLDER.glob("*/environment.toml")]
    return tuple(sorted(found, key=lambda entry: (entry.position, entry.key)))


def find(key: str) -> Entry | None:
    """Return the environment with this key; ``bare-3.12`` is the bare one with that Python."""
    found = next((entry for entry in catalogue() if entry.key == key), None)
    if found is None and (python := BARE_PYTHON.fullmatch(key)):
        bare = find(BARE_KEY)
        return replace(bare, key=key, python=python[1]) if bare else None
    return found
