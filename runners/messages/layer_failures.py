"""Why packages could not be resolved or built as a layer, and what would fix it."""

import re
from abc import abstractmethod
from dataclasses import dataclass

from runners.messages.environment_failures import Failure

FULL_ENVIRONMENT = "Change the line, or build a full environment, which has no base."


@dataclass(frozen=True)
class BadRecipe(Failure):
    code = "layer.bad_recipe"
    error: str

    @property
    def reason(self) -> str:
        return self.error


# --- what a list asks for ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContradictsBase(Failure):
    """A line cannot be combined with a package of the base."""

    code = "layer.contradicts_base"
    line: str
    package: str
    version: str
    requirement: str = ""
    """What the package of the line needs of the base's package; empty if the line is about the package itself."""

    @property
    def reason(self) -> str:
        needs = f" (it needs {self.requirement})" if self.requirement else ""
        return f"{self.line}{needs} contradicts {self.package} {self.version} of this base."

    @property
    def fix(self) -> str:
        return FULL_ENVIRONMENT


@dataclass(frozen=True)
class ContradictsItself(Failure):
    code = "layer.contradicts_itself"
    lines: tuple[str, ...]
    explanation: str

    @property
    def reason(self) -> str:
        named = " and ".join(self.lines[:4])
        return f"{named or 'The lines'} cannot be installed together: {self.explanation}"

    @property
    def fix(self) -> str:
        return "Change or remove one of these lines."


@dataclass(frozen=True)
class NoSuchPackage(Failure):
    code = "layer.no_such_package"
    package: str
    line: str = ""
    """The line that needs it, if that is another package."""

    @property
    def reason(self) -> str:
        needs = f", which {self.line} needs" if self.line else ""
        return f"The package index of this node has no package {self.package}{needs}."

    @property
    def fix(self) -> str:
        return (
            "Check the spelling: the name to install may differ from the name to import. For a package of another "
            "index, an admin can allow that index."
        )


@dataclass(frozen=True)
class NoSuchVersion(Failure):
    code = "layer.no_such_version"
    requirement: str
    line: str = ""

    @property
    def reason(self) -> str:
        needs = f", which {self.line} needs" if self.line else ""
        return f"The package index of this node has no version {self.requirement}{needs}."

    @property
    def fix(self) -> str:
        return "Name a version that exists, or leave the version out."


@dataclass(frozen=True)
class OnlySource(Failure):
    code = "layer.only_source"
    package: str
    line: str = ""

    @property
    def reason(self) -> str:
        needs = f", which {self.line} needs," if self.line else ""
        return f"{self.package}{needs} exists only as source code that must be built, not as a wheel."

    @property
    def fix(self) -> str:
        if re.split(r"[^a-z0-9-]", self.package)[0] == "horovod":
            return "Choose a base that has Horovod, such as PyTorch and Horovod, or a full environment with Horovod."
        return "Take a version that has a wheel, or ask an admin to allow building from source."


@dataclass(frozen=True)
class NoFittingWheel(Failure):
    code = "layer.no_fitting_wheel"
    package: str
    kind: str
    """What it would have to fit: ``Python 3.11, x86_64, CPU``."""
    offered: str = ""
    """What the index offers, in uv's words."""

    @property
    def reason(self) -> str:
        offered = f" It is offered for {self.offered}." if self.offered else ""
        return f"{self.package} has no wheel for this kind of node ({self.kind}).{offered}"

    @property
    def fix(self) -> str:
        return "Take another version of it, or an environment with a Python version that it supports."


@dataclass(frozen=True)
class NeedsOtherPython(Failure):
    code = "layer.needs_other_python"
    package: str
    needed: str
    """``>=3.13``"""
    python: str

    @property
    def reason(self) -> str:
        return f"{self.package} needs Python {self.needed}, and this environment has Python {self.python}."

    @property
    def fix(self) -> str:
        return "Take an older version of it, or build a full environment with that Python version."


@dataclass(frozen=True)
class NeedsPython(Failure):
    code = "layer.needs_python"
    transient = True
    version: str
    here: str

    @property
    def reason(self) -> str:
        return f"This node has no Python {self.version}."

    @property
    def fix(self) -> str:
        return f"Install python{self.version} on it, use another node, or take Python {self.here}."


@dataclass(frozen=True)
class Unresolvable(Failure):
    """uv found no solution, for a reason that has no message of its own."""

    code = "layer.unresolvable"
    explanation: str

    @property
    def reason(self) -> str:
        return f"The packages cannot be resolved: {self.explanation}"

    @property
    def fix(self) -> str:
        return "Change the versions that it names."


@dataclass(frozen=True)
class HidesBase(Failure):
    """A package brings modules of the same name as one below it."""

    code = "layer.hides_base"
    modules: tuple[str, ...]

    @property
    def reason(self) -> str:
        return f"The packages would replace modules of the base: {', '.join(self.modules[:10])}."

    @property
    def fix(self) -> str:
        return "Remove the package that has them, or build a full environment, which has no base."


@dataclass(frozen=True)
class Inconsistent(Failure):
    code = "layer.inconsistent"
    problems: tuple[str, ...]

    @property
    def reason(self) -> str:
        return f"The installed packages do not fit together: {'; '.join(self.problems[:5])}."

    @property
    def fix(self) -> str:
        return "Change the versions of these packages."


@dataclass(frozen=True)
class CannotImport(Failure):
    code = "layer.cannot_import"
    module: str
    error: str

    @property
    def reason(self) -> str:
        return f"{self.module} is installed, but importing it fails: {self.error}"

    @property
    def fix(self) -> str:
        return "Take another version of it, one that is made for this version of PyTorch."


# --- fetching ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IndexAway(Failure):
    code = "layer.index_away"
    transient = True
    address: str
    error: str

    @property
    def reason(self) -> str:
        return f"{self.address} cannot be reached: {self.error}."

    @property
    def fix(self) -> str:
        return (
            "Try again later. If it stays so, an admin checks this node's network and package index (pip config list)."
        )


@dataclass(frozen=True)
class HostNotAllowed(Failure):
    code = "layer.host_not_allowed"
    host: str
    why: str

    @property
    def reason(self) -> str:
        return f"The build was refused access to {self.host}: {self.why}."

    @property
    def fix(self) -> str:
        return "If the files of a package index are there, an admin can allow this host."


@dataclass(frozen=True)
class HashMismatch(Failure):
    code = "layer.hash_mismatch"
    package: str

    @property
    def reason(self) -> str:
        return f"The downloaded file of {self.package} does not have the hash that the package index has for it."

    @property
    def fix(self) -> str:
        return "Build it again from the start. If it stays so, the index or a proxy serves damaged or altered files."


@dataclass(frozen=True)
class PipOptionUnsupported(Failure):
    code = "layer.pip_option"
    transient = True
    option: str

    @property
    def reason(self) -> str:
        return f"This node's pip is configured with “{self.option}”, which cannot be followed for layers."

    @property
    def fix(self) -> str:
        return "Remove the option (pip config unset), or build on another node."


@dataclass(frozen=True)
class ProxyUnsupported(Failure):
    code = "layer.proxy_unsupported"
    transient = True
    error: str

    @property
    def reason(self) -> str:
        return self.error

    @property
    def fix(self) -> str:
        return "Name an HTTP proxy (http://HOST:PORT) in this node's pip configuration, or build on another node."


# --- building ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceBuildFailed(Failure):
    code = "layer.source_build_failed"
    package: str
    lines: tuple[str, ...]
    """The last lines of the build's output."""

    @property
    def reason(self) -> str:
        return f"Building {self.package} from source failed: {' / '.join(self.lines[-3:]) or 'it printed nothing'}"

    @property
    def fix(self) -> str:
        return "The log has the whole output. Take a version that has a wheel, or one that this node can build."


@dataclass(frozen=True)
class CannotConfine(Failure):
    code = "layer.cannot_confine"
    transient = True

    @property
    def reason(self) -> str:
        return "This node can confine no builds, so it runs no code of packages: it cannot build from source."

    @property
    def fix(self) -> str:
        return "Install bubblewrap on it, or build on another node."


@dataclass(frozen=True)
class NoUv(Failure):
    code = "layer.no_uv"
    transient = True

    @property
    def reason(self) -> str:
        return "This node has no uv, the program that resolves and installs packages."

    @property
    def fix(self) -> str:
        return "Install its agent again: uv is one of its packages."


@dataclass(frozen=True)
class HorovodNotHere(Failure):
    code = "layer.horovod_not_here"
    transient = True

    @property
    def reason(self) -> str:
        return "Horovod can be compiled only for the Python and the C library of this machine itself."

    @property
    def fix(self) -> str:
        return "Build on a node that runs jobs as processes and has a compiler, or take a base with Horovod."


@dataclass(frozen=True)
class CommandFailed(Failure):
    code = "layer.command_failed"
    transient = True
    error: str

    @property
    def reason(self) -> str:
        return f"The build failed: {self.error}"

    @property
    def fix(self) -> str:
        return "The log has the whole output."


# --- limits -----------------------------------------------------------------------------------------------------------


class Limited(Failure):
    """A limit of the node stopped the build."""

    transient = True

    @property
    @abstractmethod
    def reason(self) -> str: ...


@dataclass(frozen=True)
class DiskNearlyFull(Limited):
    code = "layer.disk_nearly_full"
    free_mib: int
    kept_mib: int
    folder: str

    @property
    def reason(self) -> str:
        return f"The disk of {self.folder} has {self.free_mib} MiB left, and builds leave {self.kept_mib} MiB to running jobs."

    @property
    def fix(self) -> str:
        return "Make room there, or build on another node."


@dataclass(frozen=True)
class NoSpaceLeft(Limited):
    code = "layer.no_space_left"
    reason = "No space is left on the disk of this node."
    fix = "Make room there, or build on another node."


@dataclass(frozen=True)
class NoMemoryLeft(Limited):
    code = "layer.no_memory_left"
    reason = "The build ran out of memory."
    fix = "Try again when the node is less busy, or build on another node."


@dataclass(frozen=True)
class TimeLimit(Limited):
    code = "layer.time_limit"
    minutes: int

    @property
    def reason(self) -> str:
        return f"The build was stopped after {self.minutes} minutes."

    @property
    def fix(self) -> str:
        return "Try again, perhaps on a faster node; packages that have wheels need no time to build."


@dataclass(frozen=True)
class LayerTooLarge(Failure):
    code = "layer.too_large"
    mib: int
    max_mib: int

    @property
    def reason(self) -> str:
        return f"The packages need {self.mib} MiB, and a build may have {self.max_mib} MiB."

    @property
    def fix(self) -> str:
        return "Remove packages that the job does not need."


@dataclass(frozen=True)
class TooManyFiles(Failure):
    code = "layer.too_many_files"
    maximum: int

    @property
    def reason(self) -> str:
        return f"The packages have more than {self.maximum} files."

    @property
    def fix(self) -> str:
        return "Remove packages that the job does not need."


@dataclass(frozen=True)
class TooMuchOutput(Failure):
    code = "layer.too_much_output"
    mib: int

    @property
    def reason(self) -> str:
        return f"The build printed more than {self.mib} MiB."

    @property
    def fix(self) -> str:
        return "Take a version of the package that has a wheel."


# --- layers that come from elsewhere ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DamagedLayer(Failure):
    code = "layer.damaged"
    transient = True
    why: str

    @property
    def reason(self) -> str:
        return f"The downloaded packages are damaged: {self.why}."

    @property
    def fix(self) -> str:
        return "They are downloaded again; if it stays so, rebuild them."
