"""Checkpoints that are never half written: each is written to another file, synced and then renamed. The last few are kept."""

import json
import os
import re
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

DEFAULT_KEEP = 2


class Checkpoints:
    """A folder of checkpoints, named by step, of tensors and plain values in torch's format.

    Without a ``folder`` it is the job's ``/checkpoints``. The last ``keep`` are kept. ``Run`` saves one ``every_seconds``,
    and before the program ends.

    >>> import tempfile
    >>> from schedulearn_train import Checkpoints
    >>> checkpoints = Checkpoints(tempfile.mkdtemp(), keep=2)
    >>> for step in (10, 20, 30):
    ...     path = checkpoints.save(step, {"step": step})
    >>> checkpoints.newest()
    (30, {'step': 30})
    """

    kind: ClassVar[str] = "pt"
    every_seconds = 60.0

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        keep: int = DEFAULT_KEEP,
        *,
        every_seconds: float = 60.0,
    ) -> None:
        if keep < 1:
            raise ValueError("keep must be at least 1: the last checkpoint is always kept")
        self.folder = Path(folder or os.environ.get("SCHEDULEARN_CHECKPOINTS") or "checkpoints")
        self.keep, self.every_seconds = keep, every_seconds

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints in the folder, newest first.

        >>> checkpoints.steps()
        [30, 20]
        """
        if not self.folder.is_dir():
            return []
        name = re.compile(rf"step-(\d{{12}})\.{self.kind}")
        found = (name.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def path(self, step: int) -> Path:
        """Return the file of a checkpoint.

        >>> checkpoints.path(30).name
        'step-000000000030.pt'
        """
        return self.folder / f"step-{step:012}.{self.kind}"

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Save a checkpoint, delete those beyond the last ``keep``, and return its file.

        >>> checkpoints.save(40, {"step": 40}).exists()
        True
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(step)
        temporary = path.with_suffix(f".{os.getpid()}.new")
        with temporary.open("wb") as file:
            self._write(file, state)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        self._delete_beyond_keep()
        return path

    def _delete_beyond_keep(self) -> None:
        for step in self.steps()[self.keep :]:
            self.path(step).unlink(missing_ok=True)

    def newest(self) -> tuple[int, dict[str, Any]] | None:
        """Return step and state of the newest checkpoint that can be read, or None without any.

        Reading runs no code that a checkpoint contains.

        >>> checkpoints.newest()
        (30, {'step': 30})
        """
        for step in self.steps():
            try:
                return step, self._read(self.path(step))
            except Exception as error:  # noqa: BLE001  a file that is no checkpoint raises errors of many types
                print(f"{self.path(step)} cannot be read ({error!r}); trying the previous checkpoint.")  # noqa: T201
        return None

    def _write(self, file: IO[bytes], state: dict[str, Any]) -> None:
        import torch

        torch.save(state, file)

    def _read(self, path: Path) -> dict[str, Any]:
        import torch

        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return found


class ArrayCheckpoints(Checkpoints):
    """Checkpoints of ``arrays``, a list of NumPy arrays, and ``facts``, plain values that JSON can express."""

    kind = "npz"

    def _write(self, file: IO[bytes], state: dict[str, Any]) -> None:
        arrays = {f"array {number}": array for number, array in enumerate(state["arrays"])}
        np.savez(file, facts=np.array(json.dumps(state["facts"])), **arrays)

    def _read(self, path: Path) -> dict[str, Any]:
        with np.load(path, allow_pickle=False) as content:
            arrays = [content[f"array {number}"] for number in range(len(content.files) - 1)]
            return {"arrays": arrays, "facts": json.loads(str(content["facts"]))}
