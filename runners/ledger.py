"""The agent's notes about its containers, in memory and on the disk, so that the next agent knows what this one did."""

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from runners.nodefiles import NodeFiles, read_own_json, write_json
from runners.reconcile import Exit, Note, Told

logger = logging.getLogger(__name__)

MOST_ENDED = 2_000
"""Names of forgotten containers kept, so that an old reply cannot make one anew."""
ENDED = Note(0, 0, 0, exit=Exit(None, "lost", "It ended before and is forgotten here."), collected=True)


class Ledger:
    """Safe to use from all threads. What ``change`` returns is on the disk."""

    def __init__(self, files: NodeFiles) -> None:
        self._files = files
        self._lock = threading.RLock()
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
        with self._lock:
            if name not in self._notes:
                self._files.container(name).mkdir(mode=0o711, exist_ok=True)
                self._write(name, note)
            return self._notes[name]

    def change(self, name: str, **changes: Any) -> Note:
        """Raises KeyError for a container there is no note of."""
        with self._lock:
            self._write(name, replace(self._notes[name], **changes))
            return self._notes[name]

    def forget(self, name: str) -> None:
        """Deletes the container's folder, and its attempt's with the last container of it."""
        with self._lock:
            note = self._notes.get(name)
            if note is None:
                return
            self._ended[name] = None
            for oldest in list(self._ended)[:-MOST_ENDED]:
                del self._ended[oldest]
            write_json(self._ended_path, list(self._ended), 0o600)
        delete_tree(self._files.container(name))
        with self._lock:
            del self._notes[name]
            last = all(other.attempt != note.attempt for other in self._notes.values())
        if last:
            delete_tree(self._files.attempt(note.attempt))

    def _write(self, name: str, note: Note) -> None:
        write_json(self._files.note(name), asdict(note), 0o600)
        self._notes[name] = note


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
    shutil.rmtree(folder, ignore_errors=True)
    if not os.path.lexists(folder):
        return
    # A job may take its own folders' rights away; when we are not root that keeps us out.
    open_up(folder)
    shutil.rmtree(folder, onerror=lambda _, path, info: logger.warning("%s could not be deleted: %s", path, info[1]))


def open_up(folder: Path) -> None:
    """Gives us the rights to every folder of a tree, from the top down, because those of one show what is in it."""
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
        with os.scandir(folder) as entries:
            beneath = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        for each in beneath:
            open_up(each)
