"""Folders that several nodes have, of which the agent tells the portal: the datasets, and one for checkpoints.

Nodes know that a folder is the same by a token that the first of them has left in it.
"""

import os
import uuid
from pathlib import Path
from typing import Any

from runners.host.node_files import NodeFiles
from runners.runtime import SetupError
from runners.runtimes.host_config import owner_for

TOKEN = ".schedulearn-shared"  # noqa: S105  no secret: it only tells folders apart
MOST_NAMES = 100


def begin(files: NodeFiles) -> None:
    """Leaves the token, if there is none, and tries what each start of a job needs. Raises SetupError."""
    if (folder := files.shared) is None:
        return
    try:
        if not token_of(folder):
            beside = folder / f"{TOKEN}.{uuid.uuid4().hex}"
            beside.write_text(uuid.uuid4().hex)
            try:
                os.link(beside, folder / TOKEN)
            except FileExistsError:
                pass  # another node was quicker
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


def is_there(files: NodeFiles) -> bool:
    """False when the folder was taken away meanwhile: nothing may be written to where it was."""
    return files.shared is None or bool(token_of(files.shared))


def token_of(folder: Path) -> str:
    """Empty when it has none, or is not there."""
    try:
        return (folder / TOKEN).read_text(errors="replace")[:64].strip()
    except OSError:
        return ""


def facts(files: NodeFiles) -> dict[str, Any]:
    """What the portal needs to know."""
    found: dict[str, Any] = {}
    if files.shared is not None and (token := token_of(files.shared)):
        found["shared"] = token
    if files.datasets is not None:
        found["datasets"] = _names(files.datasets)
    return found


def _names(folder: Path) -> list[str]:
    """Of what lies in it, as jobs see it under /data."""
    try:
        names = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
    except OSError:
        return []
    return [name.encode(errors="replace").decode()[:100] for name in names[:MOST_NAMES]]
