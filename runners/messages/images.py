"""How far a node is with an image that a project named."""

from dataclasses import dataclass

from runners.messages import Message


@dataclass(frozen=True)
class PullingImage(Message):
    code = "image.pulling"
    image: str
    arrived: Message

    @property
    def text(self) -> str:
        return f"downloading {self.image}: {self.arrived.text}"


@dataclass(frozen=True)
class CheckingImage(Message):
    code = "image.checking"
    text = "checking that jobs can run in the image"


@dataclass(frozen=True)
class AddingLauncher(Message):
    code = "image.adding_launcher"
    text = "adding to the image what starts jobs"


@dataclass(frozen=True)
class SendingImage(Message):
    code = "image.sending"
    mib: int
    total_mib: int

    @property
    def text(self) -> str:
        return f"sending the image to the portal: {self.mib} of {self.total_mib} MiB"


@dataclass(frozen=True)
class FetchingImage(Message):
    code = "image.fetching"
    mib: int
    total_mib: int

    @property
    def text(self) -> str:
        return f"fetching the image from the portal: {self.mib} of {self.total_mib} MiB"


@dataclass(frozen=True)
class LoadingImage(Message):
    code = "image.loading"
    text = "loading the image into the Docker Engine"


@dataclass(frozen=True)
class AwaitingOtherNode(Message):
    """The registry did not give the image to this node; a node that has it sends it to the portal."""

    code = "image.awaiting_other_node"
    cause: Message

    @property
    def text(self) -> str:
        return f"waiting for a node that has the image to send it to the portal, as it could not be pulled: {self.cause.text}"
