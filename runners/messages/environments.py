"""How far the preparation of an environment is, and what a ready one was made from. ``environment_failures`` has why it failed."""

from abc import abstractmethod
from dataclasses import dataclass

from runners.messages import Message

# --- steps ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Starting(Message):
    code = "environment.starting"
    text = "starting"


@dataclass(frozen=True)
class Gone(Message):
    """It was ready, and has been deleted since."""

    code = "environment.gone"
    text = "it is gone"


@dataclass(frozen=True)
class WaitingForOther(Message):
    code = "environment.waiting_for_other"
    text = "waiting for another process that prepares the same"


@dataclass(frozen=True)
class BehindOthers(Message):
    code = "environment.behind_others"
    text = "it prepares other environments first"


@dataclass(frozen=True)
class ResolvingPackages(Message):
    code = "environment.resolving_packages"
    text = "resolving packages"


@dataclass(frozen=True)
class FetchingHorovod(Message):
    code = "environment.fetching_horovod"
    text = "fetching Horovod's source"


@dataclass(frozen=True)
class FetchingTools(Message):
    code = "environment.fetching_tools"
    text = "fetching build tools"


@dataclass(frozen=True, kw_only=True)
class TimedStep(Message):
    """A step that may take long, with the time so far."""

    seconds: int | None = None

    @property
    @abstractmethod
    def phrase(self) -> str:
        """The step, without the time."""

    @property
    def text(self) -> str:
        return self.phrase if self.seconds is None else f"{self.phrase}: {format_duration(self.seconds)} so far"


def format_duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@dataclass(frozen=True)
class InstallingPackages(TimedStep):
    code = "environment.installing_packages"
    count: int

    @property
    def phrase(self) -> str:
        return f"installing {self.count} package{'s' if self.count != 1 else ''}"


@dataclass(frozen=True)
class DownloadingPackage(TimedStep):
    code = "environment.downloading_package"
    package: str
    """With its size, if that is known: ``torch (183 MiB)``."""

    @property
    def phrase(self) -> str:
        return f"downloading {self.package}"


@dataclass(frozen=True)
class DownloadingPackages(TimedStep):
    code = "environment.downloading_packages"
    done: int
    count: int

    @property
    def phrase(self) -> str:
        return f"downloading packages, {self.done} of {self.count}"


@dataclass(frozen=True)
class CheckingPackages(TimedStep):
    code = "environment.checking_packages"
    phrase = "checking that the packages work"


@dataclass(frozen=True)
class CompilingBytecode(TimedStep):
    code = "environment.compiling_bytecode"
    phrase = "compiling Python files to bytecode"


@dataclass(frozen=True)
class KeepingLayer(TimedStep):
    code = "environment.keeping_layer"
    phrase = "packing the packages"


@dataclass(frozen=True)
class InstallingTools(TimedStep):
    code = "environment.installing_tools"
    phrase = "installing what Horovod is compiled with"


@dataclass(frozen=True)
class CompilingHorovod(TimedStep):
    code = "environment.compiling_horovod"
    phrase = "compiling Horovod"


@dataclass(frozen=True)
class BuildingImage(TimedStep):
    """``step`` is 0 before the first one."""

    code = "environment.building_image"
    packages: bool
    """The image of the packages, else the one of the job that is made from it."""
    step: int = 0
    steps: int = 0

    @property
    def phrase(self) -> str:
        image = "building the image of the packages" if self.packages else "building the job image"
        return f"{image}, step {self.step} of {self.steps}" if self.step else image


@dataclass(frozen=True)
class AskingRegistry(Message):
    code = "environment.asking_registry"
    text = "asking the registry"


@dataclass(frozen=True)
class LayersArrived(Message):
    code = "environment.layers_arrived"
    done: int
    count: int
    mib: int
    total_mib: int | None = None
    """None while the sizes are not known."""

    @property
    def text(self) -> str:
        sizes = "" if self.total_mib is None else f"{self.mib} of {self.total_mib} MiB, "
        return f"{sizes}{self.done} of {self.count} layers"


@dataclass(frozen=True)
class PullingBaseImage(Message):
    code = "environment.pulling_base_image"
    image: str
    arrived: Message

    @property
    def text(self) -> str:
        return f"downloading the base image {self.image}: {self.arrived.text}"


@dataclass(frozen=True)
class PullingBuildImage(Message):
    code = "environment.pulling_build_image"
    image: str
    arrived: Message

    @property
    def text(self) -> str:
        return f"downloading the compiler's image {self.image}: {self.arrived.text}"


# --- what a ready environment was made from ---------------------------------------------------------------------------


@dataclass(frozen=True)
class MadeFrom(Message):
    code = "environment.made_from"
    image: str
    digest: str

    @property
    def text(self) -> str:
        return f"Made from {self.image} ({self.digest})."


@dataclass(frozen=True)
class MadeFromLocal(Message):
    """Made from an image that was built or imported on the machine."""

    code = "environment.made_from_local"
    image: str
    image_id: str

    @property
    def text(self) -> str:
        return f"Made from {self.image} (image ID {self.image_id}; it does not come from a registry)."
