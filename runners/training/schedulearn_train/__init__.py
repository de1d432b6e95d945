"""Schedulearn's training library: elasticity in five lines, unequal workers used to the full (docs/training.md)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoints import Checkpoints
    from .report import log_metric
    from .run import Run
    from .sampler import Sampler
    from .stopping import Notice, Stopped, notice, should_stop

__all__ = ["Checkpoints", "Notice", "Run", "Sampler", "Stopped", "log_metric", "notice", "should_stop"]

_HOMES = {
    "Checkpoints": "checkpoints",
    "Notice": "stopping",
    "Run": "run",
    "Sampler": "sampler",
    "Stopped": "stopping",
    "log_metric": "report",
    "notice": "stopping",
    "should_stop": "stopping",
}


def __getattr__(name: str) -> Any:
    """Loaded when it is asked for: only what trains needs torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
