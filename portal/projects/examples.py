"""The gallery: examples that ship with Schedulearn, each a folder with code and a ``gallery.toml``."""

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "gallery"
DESCRIPTION = "gallery.toml"


@dataclass(frozen=True, slots=True)
class Example:
    """The content of a ``gallery.toml``: how to show an example and how to run it."""

    key: str
    title: str
    description: str
    launcher: str
    entry: str
    environment: str
    time_limit_seconds: int
    order: int = 100
    teaches: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    elastic: bool = False
    resumable: bool = False
    """Whether it restarts from /checkpoints after a stop."""
    min_gpus: int = 1
    max_gpus: int = 1
    env_vars: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return FOLDER / self.key

    def files(self) -> list[tuple[str, Path]]:
        """Return relative name and path of each code file, without the description."""
        found = [path for path in sorted(self.folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
        return [(path.relative_to(self.folder).as_posix(), path) for path in found if path.name != DESCRIPTION]


@cache
def all_examples() -> tuple[Example, ...]:
    """Return all examples in the order of the page. An invalid description is our mistake and fails the tests."""
    found = [Example(**tomllib.loads(path.read_text("utf-8"))) for path in FOLDER.glob(f"*/{DESCRIPTION}")]
    return tuple(sorted(found, key=lambda example: (example.order, example.key)))


def find(key: str) -> Example | None:
    return next((example for example in all_examples() if example.key == key), None)
