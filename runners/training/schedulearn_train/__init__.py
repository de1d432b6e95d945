"""Schedulearn's training library: an ordinary training loop becomes elastic in five lines (docs/training/)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoints import Checkpoints
    from .options import AdaptiveBatch, SyncMode
    from .report import log_metric
    from .run import Run
    from .sampler import Sampler
    from .stopping import Notice, Stopped, notice, should_stop

__all__ = [
    "AdaptiveBatch",
    "Checkpoints",
    "Notice",
    "Run",
    "Sampler",
    "Stopped",
    "SyncMode",
    "log_metric",
    "notice",
    "should_stop",
]

_MODULES = {
    "AdaptiveBatch": "options",
    "Checkpoints": "checkpoints",
    "Notice": "stopping",
    "Run": "run",
    "Sampler": "sampler",
    "Stopped": "stopping",
    "SyncMode": "options",
    "log_metric": "report",
    "notice": "stopping",
    "should_stop": "stopping",
}


def __getattr__(name: str) -> Any:
    """Load public names when they are used, because only some of them need torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
