"""Folders that several nodes share, as the agent reports them to the portal: the datasets, and one for checkpoints.

Nodes recognise a shared folder by a token that the first of them has left in it.
"""

import os
import uuid
from pathlib import Path
from typing import Any

from runners.host.node_files import NodeFiles
from runners.runtime import SetupError
from runners.runtimes.host_config import owner_for

TOKEN = ".schedulearn-shared"  # noqa: S105  not a secret: it only identifies a folder
MAX_NAMES = 100


def prepare(files: NodeFiles) -> None:
    """Leave the token if there is none, and try what each start of a job needs. Raises SetupError."""
    if (folder := files.shared) is None:
        return
    try:
        if not read_token(folder):
            beside = folder / f"{TOKEN}.{uuid.uuid4().hex}"
            beside.write_text(uuid.uuid4().hex)
            try:
                os.link(beside, folder / TOKEN)
            except FileExistsError:
                pass  # another node was faster
            finally:
                beside.unlink()
        probe = folder / f".probe-{uuid.uuid4().hex}"
        probe.mkdir()
        try:
            owner = owner_for(0, os.geteuid(), os.getegid())
            os.chown(probe, owner.uid, owner.gid)
        finally:
            probe.rmdir()
    except OSError as error:
        raise SetupError(
            f"SCHEDULEARN_SHARED names {folder}, which this agent cannot give to jobs ({error.strerror}). Let it write "
            "there and change owners: an NFS server needs no_root_squash for nodes."
        ) from error


def is_mounted(files: NodeFiles) -> bool:
    """Return False when the shared folder is no longer mounted: nothing may be written to its place."""
    return files.shared is None or bool(read_token(files.shared))


def read_token(folder: Path) -> str:
    """Return the token of a folder; empty when it has none or does not exist."""
    try:
        return (folder / TOKEN).read_text(errors="replace")[:64].strip()
    except OSError:
        return ""


def facts(files: NodeFiles) -> dict[str, Any]:
    """Return the facts about shared folders that the portal needs."""
    found: dict[str, Any] = {}
    if files.shared is not None and (token := read_token(files.shared)):
        found["shared"] = token
    if files.datasets is not None:
        found["datasets"] = _dataset_names(files.datasets)
    return found


def _dataset_names(folder: Path) -> list[str]:
    """Return the names of the datasets, as jobs see them under /data."""
    try:
        names = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
    except OSError:
        return []
    return [name.encode(errors="replace").decode()[:100] for name in names[:MAX_NAMES]]
