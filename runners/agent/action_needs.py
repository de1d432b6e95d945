"""What the actions of an agent need: the portal, environments, and their own state."""

from dataclasses import dataclass, field
from typing import Protocol

from runners.agent.checkpoints import CheckpointPortal
from runners.agent.claims import IdentityPortal
from runners.agent.dataset_fetch import DatasetPortal
from runners.agent.inputs import InputPortal
from runners.agent.job_proxies import NetworkPortal
from runners.agent.job_secrets import SecretPortal
from runners.agent.outputs import OutputPortal
from runners.agent.portal_client import Backoff
from runners.messages import MessageError


class NotReadyError(MessageError):
    """Something that the action needs is still being prepared. The message names it."""


@dataclass(slots=True)
class ActionState:
    """The present or last action for one container."""

    busy: bool = False
    ended_at: float = 0.0
    """Listings that began before this are too old to act on; monotonic seconds."""
    rest_until: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(0.5, 15.0))


class EnvironmentReadiness(Protocol):
    def require(self, key: str, layer: str = "") -> None:
        """Raise NotReadyError while the environment or its layer is being prepared, and CreateError if that failed."""
        ...


class ContainerPortal(
    OutputPortal, CheckpointPortal, IdentityPortal, InputPortal, NetworkPortal, SecretPortal, DatasetPortal, Protocol
):
    """The portal's endpoints for files of jobs, and for what they contact."""
