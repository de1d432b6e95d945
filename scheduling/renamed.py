"""Names that changed: policies that a lab has written itself find them by their old names for one release."""

import sys
import warnings
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module that finds its old ``names``, each mapped to the new one, with a warning."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn(f"{module}.{name}", f"{module}.{names[name]}")
        return attrgetter(names[name])(sys.modules[module])

    return find


def warn(old: str, new: str) -> None:
    """Warn the caller's caller that ``old`` is now ``new``."""
    warnings.warn(f"{old} is now {new}. The next release knows the new name only.", FutureWarning, stacklevel=3)
