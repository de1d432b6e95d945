"""The two corpora of failures: ``blind``, written without knowledge of the code and not changed, and ``programs``."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.failures import programs

HERE = Path(__file__).parent
CASE_FILES = {"case.json", "log.txt"}


@dataclass(frozen=True)
class Case:
    name: str
    facts: dict[str, Any]
    """``case.json``: how it is run, and what its cause must name."""
    files: dict[str, tuple[bytes, bool]]
    """The uploaded files, with whether each is executable."""
    log: str = ""
    """The log of a failure that cannot be run here."""

    @property
    def recording(self) -> Path:
        return HERE / "recorded" / f"{self.name}.json"

    @cached_property
    def recorded(self) -> dict[str, Any]:
        """How it ended when it was run; empty if it was not."""
        return dict(json.loads(self.recording.read_text())) if self.recording.exists() else {}


def blind() -> Iterator[Case]:
    for path in sorted((HERE / "blind").glob("*/case.json")):
        folder = path.parent
        files = {
            str(each.relative_to(folder)): (each.read_bytes(), bool(each.stat().st_mode & 0o100))
            for each in sorted(folder.rglob("*"))
            if each.is_file() and each.name not in CASE_FILES and "__pycache__" not in each.parts
        }
        log = folder / "log.txt"
        yield Case(folder.name, json.loads(path.read_text()), files, log.read_text() if log.exists() else "")


def known() -> Iterator[Case]:
    for name, facts, files in programs.cases():
        yield Case(name, facts, {path: (text.encode(), False) for path, text in files.items()})
