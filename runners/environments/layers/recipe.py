from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Recipe:
    base: str

    @classmethod
    def from_json(cls, data: Any) -> "Recipe":
        return cls(data["base"])
