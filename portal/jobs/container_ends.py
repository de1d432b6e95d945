"""How the portal itself ends containers, as data for ``Container.detail``; ``portal/sentences/container_ends.py`` has the sentences.

The messages of agents about all other ends are in ``runners.messages``.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from scheduling.messages import Message


@dataclass(frozen=True)
class HeldFailedGpu(Message):
    code: ClassVar[str] = "held_failed_gpu"
    fault: Any
    """``Gpu.fault``: a message, or a text of the previous release."""


@dataclass(frozen=True)
class DidNotStop(Message):
    code: ClassVar[str] = "did_not_stop"


@dataclass(frozen=True)
class NodeWasSilent(Message):
    code: ClassVar[str] = "node_was_silent"
    node: str
