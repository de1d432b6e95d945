"""The agent's journal of its containers, in memory and on the disk, so that the next agent knows what this one did."""

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

from runners.agent.reconcile import ControlMessage, Exit, JournalEntry
from runners.host.node_files import STATE_FILE, NodeFiles, open_folder, read_own_json, write_json
from runners.messages import Message, Quotation, message_from
from runners.messages.containers import Forgotten

logger = logging.getLogger(__name__)

OLD_CONTROL_KEY = "told"
"""What earlier releases called ``control`` in the file of an entry."""
MAX_ENDED_NAMES = 2_000
"""How many names of forgotten containers are kept, so that an old reply cannot start one of them again."""
ENDED_ENTRY = JournalEntry(0, 0, 0, exit=Exit(None, "lost", Forgotten()), collected=True)


class ContainerJournal:
    """The entries of all containers. Safe to use from all threads. What ``change`` returns is on the disk.

    A single writing thread makes all changes, first on the disk and then in memory, so that a reader never waits for the
    disk. Each entry is in the ``state.json`` of its container's folder. Earlier releases called this file ``note.json``; it
    is renamed when it is found.
    """

    def __init__(self, files: NodeFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._writer = ThreadPoolExecutor(1, "journal")
        self._entries: dict[str, JournalEntry] = {}
        self._ended: dict[str, None] = dict.fromkeys(read_own_json(self._ended_path) or ())
        for folder in files.containers.iterdir():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                folder.joinpath("note.json").rename(folder / STATE_FILE)
            if (entry := _from_json(read_own_json(folder / STATE_FILE))) is not None:
                self._entries[folder.name] = entry

    @property
    def _ended_path(self) -> Path:
        return self._files.home / "ended.json"

    def get(self, name: str) -> JournalEntry | None:
        with self._lock:
            return self._entries.get(name)

    def entries(self, listed: Collection[str] = ()) -> dict[str, JournalEntry]:
        """Return all entries, and for each listed container that was forgotten an entry of one that has ended."""
        with self._lock:
            return {**{name: ENDED_ENTRY for name in listed if name in self._ended}, **self._entries}

    def begin(self, name: str, entry: JournalEntry) -> JournalEntry:
        """Return the existing entry; without one, write this entry and return it."""
        return self._writer.submit(self._begin, name, entry).result()

    def change(self, name: str, **changes: Any) -> JournalEntry:
        """Change fields of an entry and return it. Raises KeyError for a container without an entry."""
        return self._writer.submit(self._change, name, changes).result()

    def forget(self, name: str) -> None:
        """Delete the container's folder, and that of its attempt with the last container."""
        entry = self.get(name)
        if entry is None:
            return
        self._writer.submit(self._record_ended, name).result()
        delete_tree(self._files.container(name))
        unused = self._writer.submit(self._drop, name, entry.attempt).result()
        if unused is not None:
            delete_tree(unused)

    # These methods run on the writing thread, the only one that changes what they read.

    def _begin(self, name: str, entry: JournalEntry) -> JournalEntry:
        known = self._entries.get(name)
        if known is not None:
            return known
        self._files.container(name).mkdir(mode=0o711, exist_ok=True)
        return self._write(name, entry)

    def _change(self, name: str, changes: dict[str, Any]) -> JournalEntry:
        return self._write(name, replace(self._entries[name], **changes))

    def _record_ended(self, name: str) -> None:
        ended = dict.fromkeys([*(other for other in self._ended if other != name), name][-MAX_ENDED_NAMES:])
        write_json(self._ended_path, list(ended), 0o600)
        with self._lock:
            self._ended = ended

    def _drop(self, name: str, attempt: int) -> Path | None:
        """Drop an entry. If it was the attempt's last, rename the attempt's folder and return it, to be deleted.

        Deleting takes time, and an elastic job may grow again meanwhile: a container that begins after this gets a new
        folder instead of one that vanishes. ``leftovers.tidy`` deletes what a killed agent left.
        """
        with self._lock:
            self._entries.pop(name, None)
        if any(other.attempt == attempt for other in self._entries.values()):
            return None
        folder = self._files.attempt(attempt)
        unused = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.deleted")
        try:
            folder.rename(unused)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                logger.warning("%s could not be renamed and stays for now: %s", folder, error)
            return None
        return unused

    def _write(self, name: str, entry: JournalEntry) -> JournalEntry:
        write_json(self._files.state(name), _as_json(entry), 0o600)
        with self._lock:
            self._entries[name] = entry
        return entry


def _as_json(entry: JournalEntry) -> dict[str, Any]:
    exit = entry.exit
    return asdict(replace(entry, halted_detail=None, exit=None)) | {
        "halted_detail": entry.halted_detail.data() if entry.halted_detail else None,
        "exit": exit and {"code": exit.code, "reason": exit.reason, "detail": exit.message and exit.message.data()},
    }


def _message(stored: Any) -> Message | None:
    """Read a message as it was written, or the text of an agent of the previous release; what else is there as a quotation."""
    if not stored:
        return None
    try:
        return message_from(stored)
    except TypeError:  # of a later release
        return Quotation(str(stored))


def _from_json(data: Any) -> JournalEntry | None:
    """Parse an entry; None for what no agent wrote."""
    try:
        if OLD_CONTROL_KEY in data:
            data = {("control" if key == OLD_CONTROL_KEY else key): value for key, value in data.items()}
        control, exit = data["control"], data["exit"]
        hosts = tuple((name, slots) for name, slots in control["hosts"]) if control else ()
        return JournalEntry(
            **{
                **data,
                "control": ControlMessage(**{**control, "hosts": hosts}) if control else None,
                "halted_detail": _message(data.get("halted_detail")),
                "exit": Exit(exit["code"], exit["reason"], _message(exit.get("detail"))) if exit else None,
            }
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        return None


def delete_tree(folder: Path) -> None:
    """Delete what users' code may have filled, without following links. What cannot be deleted is logged and left."""
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(folder)
    if os.path.lexists(folder):
        flatten_tree(folder)
        shutil.rmtree(
            folder, onerror=lambda _, path, info: logger.warning("%s could not be deleted: %s", path, info[1])
        )


def flatten_tree(folder: Path) -> None:
    """Move every folder of a tree to its top and give the agent access to it.

    A job may remove the permissions of its own folders, which keeps us out when we are not root, and may nest them deeper
    than ``shutil`` can recurse.
    """
    fresh = (f"{uuid.uuid4()}-{number}" for number in itertools.count())
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
        with open_folder(folder) as top:
            todo = unlock_folders(top)
            while todo:
                with contextlib.suppress(OSError), open_folder(top, todo.pop()) as parent:
                    for name, new in zip(unlock_folders(parent), fresh, strict=False):
                        os.rename(name, new, src_dir_fd=parent, dst_dir_fd=top)
                        todo.append(new)


def unlock_folders(handle: int) -> list[str]:
    """Return the names of the folders in an open folder, after giving the agent access to them."""
    with os.scandir(handle) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for name in names:
        os.chmod(name, 0o700, dir_fd=handle)  # noqa: PTH101 - pathlib cannot use a folder's descriptor
    return names
