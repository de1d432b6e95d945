"""Decides which job gets which GPUs: policies, their toolkit, solvers, and a simulator. Pure Python."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "after": "toolkit.projected_state",
    "allot": "optimise.allocation_search",
    "backfill": "toolkit.backfill",
    "booking": "optimise.booking",
    "capacity": "toolkit.capacity",
    "estimates": "toolkit.estimates",
    "fairness": "toolkit.fairness",
    "levels": "toolkit.levels",
    "packing": "optimise.packing",
    "performance": "toolkit.performance",
    "placement": "toolkit.placement",
    "program": "optimise.integer_program",
    "pursue": "toolkit.target_plan",
    "realise": "toolkit.plan_builder",
    "rearrange": "optimise.rearrangement",
    "reasons": "toolkit.reasons",
    "reserve": "reservations",
    "rewrite": "toolkit.job_updates",
    "sharing": "toolkit.sharing",
    "worth": "optimise.gain",
}
"""The new places of modules: policies that a lab has written itself may import them by their old names."""


class _MovedModules(MetaPathFinder, Loader):
    """Imports a module by its old name, with a warning. For one release."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        return ModuleSpec(fullname, self) if package == __name__ and name in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        new = f"{__name__}.{MOVED[old.rpartition('.')[2]]}"
        warnings.warn(f"{old} is now {new}. The next release knows the new name only.", FutureWarning, stacklevel=2)
        sys.modules[old] = import_module(new)


sys.meta_path.append(_MovedModules())
