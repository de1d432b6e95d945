"""What the container engine of a node could not do."""

from dataclasses import dataclass

from runners.messages import Message


@dataclass(frozen=True)
class EngineBroken(Message):
    code = "engine.error"
    error: str

    @property
    def text(self) -> str:
        return f"The Docker Engine failed: {self.error}"


@dataclass(frozen=True)
class EngineSilent(Message):
    code = "engine.silent"
    error: str

    @property
    def text(self) -> str:
        return f"The Docker Engine does not answer: {self.error}"


@dataclass(frozen=True)
class ContainerRefused(Message):
    code = "engine.container_refused"
    error: str

    @property
    def text(self) -> str:
        return f"The Docker Engine refused the container: {self.error}"


@dataclass(frozen=True)
class ContainerNotStarted(Message):
    code = "engine.container_not_started"
    error: str

    @property
    def text(self) -> str:
        return f"The container could not be started: {self.error}"


@dataclass(frozen=True)
class NoOverlay(Message):
    code = "engine.no_overlay"
    error: str

    @property
    def text(self) -> str:
        return f"Jobs cannot span this node and others: {self.error}"


@dataclass(frozen=True)
class NetworkInCreation(Message):
    code = "engine.network_in_creation"
    text = "The job's network is being created right now."


@dataclass(frozen=True)
class AddressesTaken(Message):
    code = "engine.addresses_taken"
    subnet: str

    @property
    def text(self) -> str:
        return f"Another network of this engine still has the addresses {self.subnet}."


@dataclass(frozen=True)
class NoAddressesLeft(Message):
    code = "engine.no_addresses_left"
    text = (
        "The Docker Engine has no addresses left for another job network. "
        'Add "default-address-pools" to its daemon.json.'
    )


@dataclass(frozen=True)
class NetworkRefused(Message):
    code = "engine.network_refused"
    error: str

    @property
    def text(self) -> str:
        return f"The Docker Engine refused the job's network: {self.error}"


@dataclass(frozen=True)
class NetworksUnreadable(Message):
    code = "engine.networks_unreadable"
    error: str

    @property
    def text(self) -> str:
        return f"The machine's own networks could not be read: {self.error}"


@dataclass(frozen=True)
class NetworkHides(Message):
    """The job's network would have the addresses of one of the machine's own."""

    code = "engine.network_hides"
    subnet: str
    hidden: str

    @property
    def text(self) -> str:
        return (
            f"The job's network {self.subnet} would hide this machine's own {self.hidden}. An admin must set RING_NETWORK of "
            "the portal to addresses that no machine of the lab uses."
        )
