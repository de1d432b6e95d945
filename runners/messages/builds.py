"""Where the build of an environment stands that one node makes for all of its kind, and why it ended without success."""

from dataclasses import dataclass

from runners.messages import Message
from runners.messages.environment_failures import Failure


@dataclass(frozen=True)
class BuildStarting(Message):
    code = "build.starting"
    text = "starting"


@dataclass(frozen=True)
class BuiltElsewhere(Message):
    """Another node of the same kind builds it."""

    code = "build.elsewhere"
    node: str
    percent: int
    step: Message | None = None

    @property
    def text(self) -> str:
        step = f", {self.step.text}" if self.step else ""
        return f"being built by {self.node}: {self.percent} %{step}"


@dataclass(frozen=True)
class FetchingLayer(Message):
    code = "build.fetching"
    mib: int
    total_mib: int

    @property
    def text(self) -> str:
        return f"fetching its packages from the portal: {self.mib} of {self.total_mib} MiB"


@dataclass(frozen=True)
class SendingLayer(Message):
    code = "build.sending"
    mib: int
    total_mib: int

    @property
    def text(self) -> str:
        return f"sending its packages to the portal: {self.mib} of {self.total_mib} MiB"


@dataclass(frozen=True)
class UnpackingLayer(Message):
    code = "build.unpacking"
    text = "unpacking its packages"


@dataclass(frozen=True)
class BuildCancelled(Failure):
    code = "build.cancelled"
    user: str
    """Empty where another project shares the build, to which the user means nothing."""

    @property
    def reason(self) -> str:
        if not self.user:
            return "Another project that shares this build cancelled it."
        return f"{self.user} cancelled the build."

    @property
    def fix(self) -> str:
        return "Choose Build again on the page of the environment."


@dataclass(frozen=True)
class BuildLost(Failure):
    """Its node stopped sending progress."""

    code = "build.lost"
    node: str
    times: int = 1

    @property
    def reason(self) -> str:
        times = f" {self.times} times" if self.times > 1 else ""
        return f"The node that built it stopped{times}, the last time {self.node}."

    @property
    def fix(self) -> str:
        return "Look at that node, then choose Build again on the page of the environment."


@dataclass(frozen=True)
class UnexpectedError(Failure):
    """An error for which the agent has no message: a fault of its program rather than of what was asked for."""

    code = "build.unexpected_error"
    transient = True
    error: str

    @property
    def reason(self) -> str:
        return f"The agent failed while it built this: {self.error}."

    @property
    def fix(self) -> str:
        return "An admin finds more in the agent's log on that node. Choose Build again to try once more."


@dataclass(frozen=True)
class PortalRefusedLayer(Failure):
    code = "build.refused"
    error: str

    @property
    def reason(self) -> str:
        return f"The portal did not accept the packages: {self.error}"


@dataclass(frozen=True)
class OverBuildMemory(Failure):
    code = "build.over_memory"
    transient = True
    max_mib: int

    @property
    def reason(self) -> str:
        return f"The builds of a node may use {self.max_mib / 1024:.0f} GiB of its memory, and this one needed more."

    @property
    def fix(self) -> str:
        return "Take a version of the package that has a wheel, or build on a node with more memory."
