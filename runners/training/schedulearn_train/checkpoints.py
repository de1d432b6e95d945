"""Checkpoints that are whole or not there at all: written beside, synced, renamed; the last few are kept."""

import os
import re
from pathlib import Path
from typing import Any

import torch

NAME = re.compile(r"step-(\d{12})\.pt")
KEPT = 2


class Checkpoints:
    """A folder of checkpoints by the number of their step. ``/checkpoints`` of the job, unless another one is named."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, keep: int = KEPT) -> None:
        if keep < 1:
            raise ValueError("at least one checkpoint is kept")
        self.folder = Path(folder or os.environ.get("SCHEDULEARN_CHECKPOINTS") or "checkpoints")
        self.keep = keep

    def steps(self) -> list[int]:
        """Of all that are there, the newest first."""
        if not self.folder.is_dir():
            return []
        found = (NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:012}.pt"

    def save(self, step: int, state: dict[str, Any]) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(step)
        beside = path.with_suffix(f".{os.getpid()}.new")
        with beside.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        for old in self.steps()[self.keep :]:
            self.path(old).unlink(missing_ok=True)
        return path

    def newest(self) -> tuple[int, dict[str, Any]] | None:
        """Step and state; an older one where the newest cannot be read. None without any.

        It is read without running what it contains, so it may only hold tensors and plain values.
        """
        for step in self.steps():
            try:
                return step, torch.load(self.path(step), map_location="cpu", weights_only=True)
            except Exception as error:  # noqa: BLE001  torch raises many kinds for a file that is no checkpoint
                print(f"{self.path(step)} cannot be read ({error!r}); trying the one before.")  # noqa: T201
        return None
