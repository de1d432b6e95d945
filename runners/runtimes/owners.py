"""Gives a job's folders to the user that it runs as."""

import os
import stat
from pathlib import Path

from runners.runtime import Folders
from runners.runtimes.host_config import Owner


def chown_folders(folders: Folders, owner: Owner) -> None:
    """Make the job's user the owner of what it may write, and let it read its control files.

    An agent that is not root runs jobs as itself and changes nothing. The fresh workspace, and checkpoints that have just
    been fetched, are given with all their content; of folders that another container of the job may write to, only the top.
    """
    if os.geteuid() != 0:
        return
    for folder in (folders.outputs, folders.scribe):
        chown_folder(folder, owner.uid, owner.gid, 0o700)
    for folder in filter(None, (folders.control, folders.network)):
        chown_folder(folder, 0, owner.gid, 0o750)
    copies = (dataset.copy for dataset in folders.datasets)
    for folder in filter(None, (folders.workspace, folders.checkpoints, *copies)):
        if folder.stat().st_uid != owner.uid:  # else given by an earlier call, or in use
            chown_tree(folder, owner)


def chown_tree(folder: Path, owner: Owner) -> None:
    for _, names, files, top in os.fwalk(folder, follow_symlinks=False):
        for name in (*names, *files):
            os.chown(name, owner.uid, owner.gid, dir_fd=top, follow_symlinks=False)
    chown_folder(folder, owner.uid, owner.gid, 0o700)  # last: its owner shows that the rest is done


def chown_folder(folder: Path, uid: int, gid: int, mode: int) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if (held := os.fstat(handle)).st_uid != uid or held.st_gid != gid:
            os.chown(handle, uid, gid)
        if stat.S_IMODE(os.fstat(handle).st_mode) != mode:
            os.fchmod(handle, mode)
    finally:
        os.close(handle)
