"""Why an environment could not be prepared, and what would fix it."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from runners.messages import Message


class Failure(Message):
    """Why an environment could not be prepared. The text is the reason followed by the fix."""

    transient: ClassVar[bool] = False
    """Whether the same may succeed later or on another node; if not, what was asked for has to change."""

    @property
    @abstractmethod
    def reason(self) -> str:
        """Why it failed: a sentence."""

    @property
    def fix(self) -> str:
        """What would fix it; empty when nothing here would."""
        return ""

    @property
    def text(self) -> str:
        return f"{self.reason} {self.fix}".strip()


@dataclass(frozen=True)
class UnknownEnvironment(Failure):
    code = "environment.unknown"
    key: str

    @property
    def reason(self) -> str:
        return f"There is no environment “{self.key}” in this release."


@dataclass(frozen=True)
class EngineFailed(Failure):
    code = "environment.engine_failed"
    transient = True
    fix = "Start the engine; it is tried again."
    error: Message

    @property
    def reason(self) -> str:
        return self.error.text


@dataclass(frozen=True)
class SystemRefused(Failure):
    code = "environment.system_refused"
    transient = True
    error: str

    @property
    def reason(self) -> str:
        return f"The system refused: {self.error}."


@dataclass(frozen=True)
class NoSpace(Failure):
    code = "environment.no_space"
    transient = True
    fix = "Make room there, or set SCHEDULEARN_CACHE to a folder with more space."
    free_mib: int
    needed_mib: int
    folder: str

    @property
    def reason(self) -> str:
        return f"Only {self.free_mib} MiB are free on the disk of {self.folder}; {self.needed_mib} MiB are needed."


@dataclass(frozen=True)
class NoFramework(Failure):
    code = "environment.no_framework"
    reason = "The packages contain neither torch nor TensorFlow."
    fix = "Add one to the recipe's requirements.txt."


@dataclass(frozen=True)
class OnlyGpuBuilds(Failure):
    code = "environment.only_gpu_builds"
    package: str
    cpu_index: str
    """PyTorch's own index with builds for CPUs."""

    @property
    def reason(self) -> str:
        return f"This machine has no GPU, and its package index offers only builds for GPUs ({self.package})."

    @property
    def fix(self) -> str:
        return (
            f"Set SCHEDULEARN_TORCH_INDEX to an index with the CPU build (PyTorch's own: {self.cpu_index}), or add a "
            "folder that holds its wheel: pip config set global.find-links FOLDER. Then try again."
        )


# A program failed


@dataclass(frozen=True)
class Stage(Message):
    """What a program was doing when it failed."""

    code = "environment.stage"
    name: str
    """A key of ``STAGES``."""
    image: str = ""
    """For the stages ``building`` and ``compiling_in``."""

    @property
    def text(self) -> str:
        return f"{STAGES.get(self.name, self.name)} {self.image}".strip()


STAGES = {
    "resolving": "Resolving the packages",
    "downloading": "Downloading the packages",
    "installing": "Installing the packages",
    "fetching_horovod": "Fetching Horovod's source",
    "fetching_tools": "Fetching build tools",
    "compiling": "Compiling Horovod",
    "building": "Building",
    "compiling_in": "Compiling in",
}


class StageFailed(Failure):
    stage: Stage

    @property
    @abstractmethod
    def cause(self) -> str:
        """What follows the name of the stage."""

    @property
    def reason(self) -> str:
        return f"{self.stage.text} failed: {self.cause}"


@dataclass(frozen=True)
class DiskFull(StageFailed):
    code = "environment.disk_full"
    transient = True
    cause = "no space is left on the disk."
    fix = "Make room, then try again."
    stage: Stage


@dataclass(frozen=True)
class OutOfMemory(StageFailed):
    code = "environment.out_of_memory"
    transient = True
    cause = "memory ran out."
    fix = "Free some memory (4 GiB are needed), then try again."
    stage: Stage


@dataclass(frozen=True)
class IndexOutOfReach(StageFailed):
    code = "environment.index_out_of_reach"
    transient = True
    fix = "Check that this machine's pip reaches a package index (pip config list), then try again."
    stage: Stage
    error: str

    @property
    def cause(self) -> str:
        return self.error


@dataclass(frozen=True)
class ProgramFailed(StageFailed):
    code = "environment.program_failed"
    transient = True
    stage: Stage
    error: str
    log: str

    @property
    def cause(self) -> str:
        return self.error

    @property
    def fix(self) -> str:
        return f"The full output is in {self.log}."


@dataclass(frozen=True)
class TookTooLong(Failure):
    code = "environment.took_too_long"
    transient = True
    stage: Stage
    minutes: int
    log: str

    @property
    def reason(self) -> str:
        return f"{self.stage.text} has not ended after {self.minutes} minutes, and was stopped."

    @property
    def fix(self) -> str:
        return f"See the end of {self.log}, then try again."


# Images


@dataclass(frozen=True)
class EngineDiskFull(Failure):
    code = "environment.engine_disk_full"
    transient = True
    reason = "Building the image failed: the engine's disk is full."
    fix = "Make room (docker system prune), then try again."


@dataclass(frozen=True)
class NoWorkingPython(Failure):
    code = "environment.no_working_python"
    fix = "Use an image with Python 3.11 or newer called “python”, or run deploy/base-image.sh."
    image: str
    error: str

    @property
    def reason(self) -> str:
        return f"The image {self.image} has no working python: {self.error}"


@dataclass(frozen=True)
class CannotPull(Failure):
    code = "environment.cannot_pull"
    fix = "Set SCHEDULEARN_BASE_IMAGE to an image this engine has, or make one with deploy/base-image.sh."
    image: str
    error: str

    @property
    def reason(self) -> str:
        return f"The base image {self.image} cannot be pulled: {self.error}"


@dataclass(frozen=True)
class CannotPullCompiler(Failure):
    code = "environment.cannot_pull_compiler"
    fix = "Set SCHEDULEARN_BUILD_IMAGE to an image with the same Python, g++ and make."
    image: str

    @property
    def reason(self) -> str:
        return f"Horovod must be compiled once, and the image with the compiler ({self.image}) cannot be pulled."


@dataclass(frozen=True)
class IncompleteDigest(Failure):
    code = "environment.incomplete_digest"
    fix = "Write NAME:TAG@sha256: and 64 hexadecimal digits, or leave out @ and what follows."
    image: str

    @property
    def reason(self) -> str:
        return f"The image {self.image} names no complete digest."


@dataclass(frozen=True)
class OtherDigest(Failure):
    code = "environment.other_digest"
    image: str
    digests: tuple[str, ...]

    @property
    def reason(self) -> str:
        found = ", ".join(self.digests) or "none"
        return f"The engine's image {self.image} does not have this digest; it has {found}."

    @property
    def fix(self) -> str:
        return f"Pull it from its registry (docker pull {self.image}), or change SCHEDULEARN_BASE_IMAGE."


# Horovod


@dataclass(frozen=True)
class MissingTools(Failure):
    code = "environment.missing_tools"
    transient = True
    missing: tuple[str, ...]

    @property
    def reason(self) -> str:
        return f"Horovod must be compiled once, and this machine lacks {', '.join(self.missing)}."

    @property
    def fix(self) -> str:
        cuda = " and NVIDIA's CUDA toolkit (nvcc)" if "nvcc" in self.missing else ""
        return (
            f"Debian or Ubuntu: apt-get install g++ make python3-dev{cuda}. "
            f"Fedora: dnf install gcc-c++ make python3-devel{cuda}."
        )


@dataclass(frozen=True)
class OtherSource(Failure):
    code = "environment.other_source"
    fix = "Check where this machine's pip fetches from; the expected hash is in environment.toml."
    version: str

    @property
    def reason(self) -> str:
        return f"The source of Horovod {self.version} is not the one this recipe was written for."


@dataclass(frozen=True)
class OtherFile(Failure):
    code = "environment.other_file"
    fix = "Adapt runners/environments/horovod_wheel.py to it."
    path: str

    @property
    def reason(self) -> str:
        return f"Horovod's {self.path} is not as expected."


@dataclass(frozen=True)
class NoWheel(Failure):
    code = "environment.no_wheel"
    reason = "Compiling Horovod left no wheel."
    fix = "See the log in the cache folder."
