from dataclasses import dataclass


@dataclass(frozen=True)
class Base:
    python: str


def kind_of(base: Base) -> str:
    return ""
