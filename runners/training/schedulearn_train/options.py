"""Options of ``Run`` that belong together: batch sizes that the scheduler may choose, and how ranks make updates."""

import os
from dataclasses import dataclass, replace
from typing import Literal, get_args

from . import server
from .balance import PredictorKind
from .rates import Rule
from .synchrony import STALENESS

Mode = Literal["bsp", "bsp_balanced"] | server.Mode
LOCKSTEP = ("bsp", "bsp_balanced")
"""Modes in which all ranks make every update together."""
ADAPTIVE = "adaptive_ksync"
"""The mode that leaves lockstep only while leaving out a rank pays."""
MODES: tuple[str, ...] = (*LOCKSTEP, *get_args(server.Mode))


@dataclass(frozen=True)
class AdaptiveBatch:
    """A batch size that the scheduler may change while the job runs.

    The job begins with ``initial`` samples per step, over all ranks together, and stays between ``minimum`` and
    ``maximum``. ``lr_scaling`` adapts the learning rate: ``"linear"`` (SGD), ``"sqrt"`` (Adam), ``"adascale"`` (by the
    measured noise of the gradients) or ``"none"``.

    >>> from schedulearn_train import AdaptiveBatch
    >>> AdaptiveBatch(256, minimum=128, maximum=2048, lr_scaling="linear").clamp(4096)
    2048
    """

    initial: int
    minimum: int
    maximum: int
    lr_scaling: Rule = "none"

    def __post_init__(self) -> None:
        if not 0 < self.minimum <= self.initial <= self.maximum:
            raise ValueError(
                f"a batch of {self.initial} is not within its own limits, {self.minimum} to {self.maximum} samples"
            )

    def clamp(self, batch_size: int) -> int:
        """Return the nearest allowed batch size.

        >>> AdaptiveBatch(64, minimum=32, maximum=128).clamp(16)
        32
        """
        return min(self.maximum, max(self.minimum, batch_size))


@dataclass(frozen=True)
class SyncMode:
    """How ranks make updates together (docs/training/unequal-workers.md has a table of the modes).

    ``balanced`` splits each batch by the speed of the ranks, as predicted by the ``predictor``: ``"smoothing"``, ``"gru"``
    or ``"blend"``. The other options belong to the modes with a parameter server: an update takes the gradients of ``k``
    ranks, adaptive modes aim at this ``staleness`` in updates, and the parameters are cut into so many ``shards``, by
    default one per 4 MB.

    >>> from schedulearn_train import SyncMode
    >>> SyncMode("kasync", k=2, balanced=True).uses_server
    True
    """

    name: Mode = "bsp"
    balanced: bool = False
    predictor: PredictorKind = "smoothing"
    k: int | None = None
    staleness: float = STALENESS
    shards: int | None = None

    def __post_init__(self) -> None:
        if self.name not in MODES:
            raise ValueError(f"there is no mode {self.name!r}; the modes are {', '.join(MODES)}")

    @property
    def uses_server(self) -> bool:
        """Whether the mode has a parameter server, at least at times.

        >>> SyncMode("bsp").uses_server
        False
        """
        return self.name not in LOCKSTEP

    @property
    def is_adaptive(self) -> bool:
        """Whether ranks leave lockstep only while leaving out one of them pays.

        >>> SyncMode("adaptive_ksync").is_adaptive
        True
        """
        return self.name == ADAPTIVE

    @property
    def splits_by_speed(self) -> bool:
        """Whether ranks in lockstep split batches by their speed.

        >>> SyncMode("bsp_balanced").splits_by_speed
        True
        """
        return self.balanced or self.name == "bsp_balanced"


def chosen_mode(mode: SyncMode | str) -> SyncMode:
    """Return the mode of the job's form (``SCHEDULEARN_MODE``), or else the ``mode`` of the code, with the code's options."""
    name = os.environ.get("SCHEDULEARN_MODE")
    if isinstance(mode, SyncMode):
        return replace(mode, name=name) if name else mode  # type: ignore[arg-type]
    return SyncMode(name or mode)  # type: ignore[arg-type]
