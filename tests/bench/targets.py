"""What a bench must hold: figures beside the most or the least they may be."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A measured figure, and the most (or least) it may be."""

    name: str
    value: float
    limit: float
    unit: str = ""
    at_least: bool = False

    @property
    def held(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        words = "at least" if self.at_least else "at most"
        unit = f" {self.unit}" if self.unit else ""
        return f"{'held  ' if self.held else 'MISSED'} {self.name}: {self.value:,.4g}{unit}, {words} {self.limit:,.4g}{unit}"


def verdict(targets: Sequence[Target]) -> int:
    """Prints them. 0 when all are held, else 1: an exit code."""
    for target in targets:
        print(target, flush=True)
    return int(not all(target.held for target in targets))
