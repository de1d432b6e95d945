from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.environments.layers.base import Base
from runners.environments.layers.recipe import Recipe


@dataclass(frozen=True)
class BuiltLayer:
    digest: str
    lock: str
    folder: Path
    bytes: int
    modules: tuple[str, ...]
    packages: int


def build_layer(recipe: Recipe, base: Base, log: Path, progress: Any, *, fresh: bool = False) -> BuiltLayer:
    raise NotImplementedError
