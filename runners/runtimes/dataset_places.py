"""Where the ranks of a container find its datasets: pure choices, and the empty folders over which they are mounted.

All are in one folder, read-only and under their names, together with the folder of the lab, if the node has one. A dataset
may have a further place beneath the working folder, or beside it. Paths here are relative to the working folder.
"""

import os
import posixpath
from dataclasses import dataclass
from pathlib import Path

from runners.messages.datasets import DatasetPathTaken
from runners.runtime import CreateError, Folders


@dataclass(frozen=True, slots=True)
class DatasetPlace:
    """A folder of the node at a place of a container."""

    name: str
    source: Path
    path: str
    """From the working folder: ``data``, ``../data/digits``."""
    writable: bool

    def within(self, workspace: str) -> str:
        """Return the path of a container whose working folder has this path."""
        return posixpath.normpath(posixpath.join(workspace, self.path))


def places(folders: Folders) -> list[DatasetPlace]:
    """Return the places of a container's datasets, in an order in which none hides another."""
    if folders.data is None:
        return []
    found = []
    for dataset in folders.datasets:
        found.append(DatasetPlace(dataset.name, dataset.tree, f"../{folders.data.name}/{dataset.name}", False))
        if dataset.path:
            source = dataset.copy or dataset.tree
            found.append(DatasetPlace(dataset.name, source, dataset.path, dataset.copy is not None))
    return sorted(found, key=lambda place: (place.path.count("/"), place.path))


def prepare(folders: Folders, lab: str, *, beside: Path | None = None, links: bool = False) -> None:
    """Make the folder of all datasets, and empty folders over which they can be mounted; ``links`` instead of folders where
    nothing can be mounted.

    ``lab`` is where the container finds the folder of the lab. ``beside`` is the folder that has the working folder, where
    places beside it are made; None where the runtime makes them. Raises CreateError if a file of the code is in the way.
    """
    if folders.data is None or not folders.datasets:
        return
    folders.data.mkdir(mode=0o755, exist_ok=True)
    folders.data.chmod(0o755)
    for place in places(folders):
        target = _target(folders, place, beside)
        if target is None:
            continue
        try:
            _make(target, place.source if links else None)
        except (FileExistsError, NotADirectoryError) as error:
            raise CreateError(DatasetPathTaken(place.name, place.path)) from error
    for entry in folders.lab_data.iterdir() if folders.lab_data else ():
        if not os.path.lexists(folders.data / entry.name):
            (folders.data / entry.name).symlink_to(f"{lab}/{entry.name}")


def _target(folders: Folders, place: DatasetPlace, beside: Path | None) -> Path | None:
    """Return where a place is on the node; None for one beside the working folder that the runtime makes itself."""
    first, _, rest = place.path.partition("/")
    if first != "..":
        return folders.workspace / place.path
    name, _, inside = rest.partition("/")
    if folders.data is not None and name == folders.data.name:
        return folders.data / inside
    return beside / rest if beside else None


def _make(target: Path, link_to: Path | None) -> None:
    if link_to is None:
        target.mkdir(mode=0o755, parents=True, exist_ok=True)
        return
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if target.is_symlink():
        return
    if target.is_dir():
        _empty(target)
        target.rmdir()
    target.symlink_to(link_to)  # raises FileExistsError for a file


def _empty(folder: Path) -> None:
    """Delete the files that only keep a folder in Git: the portal lets datasets take the place of nothing else."""
    for entry in folder.iterdir():
        if entry.is_file():
            entry.unlink()
