"""The agent's notes about its containers, in memory and on the disk, so that the next agent knows what this one did."""

import contextlib
import itertools
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from runners.agent.reconcile import Exit, Note, Told
from runners.host.node_files import NodeFiles, opened_folder, read_own_json, write_json

logger = logging.getLogger(__name__)

MOST_ENDED = 2_000
"""Names of forgotten containers kept, so that an old reply cannot make one anew."""
ENDED = Note(0, 0, 0, exit=Exit(None, "lost", "It ended before and is forgotten here."), collected=True)


class Ledger:
    """Safe to use from all threads. What ``change`` returns is on the disk.

    One thread of its own makes all changes, first on the disk and then in memory, so that a reader never waits for the
    disk.
    """

    def __init__(self, files: NodeFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._writer = ThreadPoolExecutor(1, "ledger")
        self._notes: dict[str, Note] = {}
        self._ended: dict[str, None] = dict.fromkeys(read_own_json(self._ended_path) or ())
        for folder in files.containers.iterdir():
            if (note := _from_json(read_own_json(folder / "note.json"))) is not None:
                self._notes[folder.name] = note

    @property
    def _ended_path(self) -> Path:
        return self._files.home / "ended.json"

    def get(self, name: str) -> Note | None:
        with self._lock:
            return self._notes.get(name)

    def notes(self, listed: Collection[str] = ()) -> dict[str, Note]:
        """All notes; for listed containers that were forgotten, that they have ended."""
        with self._lock:
            return {**{name: ENDED for name in listed if name in self._ended}, **self._notes}

    def begin(self, name: str, note: Note) -> Note:
        """The note there is, else this one."""
        return self._writer.submit(self._begin, name, note).result()

    def change(self, name: str, **changes: Any) -> Note:
        """Raises KeyError for a container there is no note of."""
        return self._writer.submit(self._change, name, changes).result()

    def forget(self, name: str) -> None:
        """Deletes the container's folder, and its attempt's with the last container of it."""
        note = self.get(name)
        if note is None:
            return
        self._writer.submit(self._end, name).result()
        delete_tree(self._files.container(name))
        unused = self._writer.submit(self._drop, name, note.attempt).result()
        if unused is not None:
            delete_tree(unused)

    # Run on the writing thread, the only one that changes what these methods read.

    def _begin(self, name: str, note: Note) -> Note:
        known = self._notes.get(name)
        if known is not None:
            return known
        self._files.container(name).mkdir(mode=0o711, exist_ok=True)
        return self._write(name, note)

    def _change(self, name: str, changes: dict[str, Any]) -> Note:
        return self._write(name, replace(self._notes[name], **changes))

    def _end(self, name: str) -> None:
        ended = dict.fromkeys([*(other for other in self._ended if other != name), name][-MOST_ENDED:])
        write_json(self._ended_path, list(ended), 0o600)
        with self._lock:
            self._ended = ended

    def _drop(self, name: str, attempt: int) -> Path | None:
        """The folder to delete if that was the attempt's last container, renamed.

        Deleting takes time, and an elastic job may grow again meanwhile: a container that begins after this gets a new
        folder instead of one that vanishes. ``diskwatch.tidy`` deletes what a killed agent left.
        """
        with self._lock:
            self._notes.pop(name, None)
        if any(other.attempt == attempt for other in self._notes.values()):
            return None
        folder = self._files.attempt(attempt)
        unused = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.deleted")
        try:
            folder.rename(unused)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                logger.warning("%s stays for now: %s", folder, error)
            return None
        return unused

    def _write(self, name: str, note: Note) -> Note:
        write_json(self._files.note(name), asdict(note), 0o600)
        with self._lock:
            self._notes[name] = note
        return note


def _from_json(data: Any) -> Note | None:
    """None for what no agent wrote."""
    try:
        told, exit = data["told"], data["exit"]
        hosts = tuple((name, slots) for name, slots in told["hosts"]) if told else ()
        return Note(
            **{
                **data,
                "told": Told(**{**told, "hosts": hosts}) if told else None,
                "exit": Exit(**exit) if exit else None,
            }
        )
    except (TypeError, KeyError, ValueError):
        return None


def delete_tree(folder: Path) -> None:
    """Deletes what users' code may have filled, without following links; what resists is logged and left."""
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(folder)
    if os.path.lexists(folder):
        flatten(folder)
        shutil.rmtree(folder, onerror=lambda _, path, info: logger.warning("%s stays: %s", path, info[1]))


def flatten(folder: Path) -> None:
    """Moves every folder of a tree to its top and gives us the rights to it.

    A job may take its own folders' rights away, which keeps us out when we are not root, and may nest them deeper than
    ``shutil`` can recurse.
    """
    fresh = (f"{uuid.uuid4()}-{number}" for number in itertools.count())
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
        with opened_folder(folder) as top:
            todo = folders_in(top)
            while todo:
                with contextlib.suppress(OSError), opened_folder(top, todo.pop()) as parent:
                    for name, new in zip(folders_in(parent), fresh, strict=False):
                        os.rename(name, new, src_dir_fd=parent, dst_dir_fd=top)
                        todo.append(new)


def folders_in(handle: int) -> list[str]:
    """Their names, once they are open to us."""
    with os.scandir(handle) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for name in names:
        os.chmod(name, 0o700, dir_fd=handle)  # noqa: PTH101 - pathlib knows no folder's handle
    return names
