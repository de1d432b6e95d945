"""Deletes what old jobs left, and what a node kept of jobs that were erased in the portal.

The folder of an erased job is known by the identity of the job (``claims``), not by its number, which a restored backup gives out
again. Erased jobs never run again, so no container can get a folder while it is removed.
"""

import logging
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from runners.agent.claims import ASIDE_MARK, Claim
from runners.agent.journal import delete_tree
from runners.agent.portal_client import PortalError
from runners.host.node_files import NodeFiles

logger = logging.getLogger(__name__)
KEEP_SECONDS = 30 * 24 * 3600
"""Checkpoints are kept this long after their job was last listed here: a retry or a copy may still need them."""

MIN_AGE_SECONDS = 3600
"""A folder younger than this may belong to an attempt that has just arrived."""

AT_ONCE = 200
"""Jobs that the portal is asked about in one request, as many as it accepts."""


class ErasurePortal(Protocol):
    def erased_jobs(self, uids: Sequence[str]) -> list[str]: ...


def tidy(files: NodeFiles, portal: ErasurePortal, jobs: Collection[int], attempts: Collection[int]) -> None:
    """Mark the folders of these jobs as used; delete those of jobs that ended long ago or were erased, and of unknown attempts."""
    used, known = {str(job) for job in jobs}, {str(attempt) for attempt in attempts}
    for folder in files.jobs.iterdir():
        if folder.name in used:
            os.utime(folder)
        elif age_seconds(folder) > KEEP_SECONDS:
            delete_tree(folder)
    for folder in files.attempts.iterdir():
        kept = KEEP_SECONDS if ASIDE_MARK in folder.name else MIN_AGE_SECONDS
        if folder.name not in known and age_seconds(folder) > kept:
            delete_tree(folder)
    remove_erased(files, portal, jobs)


def remove_erased(files: NodeFiles, portal: ErasurePortal, used: Collection[int]) -> int:
    """Remove the folders of erased jobs, and return how many. ``used``: the numbers of jobs that this node has containers of.

    Nothing happens while the portal does not answer: the next round, an hour later, asks again.
    """
    numbers, removed = {str(number) for number in used}, 0
    folders = {claim.job: folder for folder, claim in _claimed(files) if folder.name not in numbers}
    uids = sorted(folders)
    for start in range(0, len(uids), AT_ONCE):
        try:
            erased = portal.erased_jobs(uids[start : start + AT_ONCE])
        except PortalError as error:  # also a portal of the release before, which has no such endpoint
            logger.debug("The portal was not asked for erased jobs: %s", error)
            break
        for uid in set(erased).intersection(folders):
            delete_tree(folders[uid])
            removed += 1
    if removed:
        logger.info("Removed the checkpoints of %s job(s) that were erased in the portal.", removed)
    return removed


def _claimed(files: NodeFiles) -> list[tuple[Path, Claim]]:
    found = []
    for folder in sorted(files.jobs.iterdir()):
        try:
            claim = Claim.read(folder)
        except OSError:
            continue  # it cannot be read now
        if claim is not None and claim.job:
            found.append((folder, claim))
    return found


def age_seconds(folder: Path) -> float:
    """Return the age of a folder; 0 when it is gone, as an attempt's last container may be forgotten meanwhile."""
    try:
        return time.time() - folder.lstat().st_mtime
    except FileNotFoundError:
        return 0.0
