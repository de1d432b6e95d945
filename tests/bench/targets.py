"""The targets of the benches: figures with their upper or lower bounds."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A measured figure with its upper (or, with ``at_least``, lower) bound."""

    name: str
    value: float
    limit: float
    unit: str = ""
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        words = "at least" if self.at_least else "at most"
        unit = f" {self.unit}" if self.unit else ""
        state = "held  " if self.is_met else "MISSED"
        return f"{state} {self.name}: {self.value:,.4g}{unit}, {words} {self.limit:,.4g}{unit}"


def verdict(targets: Sequence[Target]) -> int:
    """Print the targets; return 0 when all are met, else 1, as an exit code."""
    for target in targets:
        print(target, flush=True)
    return int(not all(target.is_met for target in targets))
