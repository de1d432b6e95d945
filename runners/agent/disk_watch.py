"""Checks the disk limits of containers, and deletes what old jobs left.

There are three limits, because three kinds of files are kept for different times: workspace and outputs share
``disk_mib``, with ``tmp_mib`` more where temporary files are on the disk; checkpoints, which outlive the attempt, have the same
limit once more; and what only the supervisor should write may be as large as logs can become.
"""

import os
import time
from collections.abc import Collection
from pathlib import Path

from runners.agent.claims import ASIDE_MARK
from runners.agent.journal import delete_tree
from runners.agent.log_shipper import MAX_STREAM_BYTES
from runners.host.node_files import NodeFiles, disk_usage
from runners.messages import Message
from runners.messages.containers import CheckpointsOverLimit, FilesOverLimit, SupervisorFolderOverLimit, TooManyFiles
from runners.spec import RunSpec

MIB = 1 << 20
MAX_SCRIBE_MIB = 64
"""The limit of everything in scribe/ except logs."""

KEEP_SECONDS = 30 * 24 * 3600
"""Checkpoints are kept this long after their job was last listed here: a retry or a copy may still need them."""

MIN_AGE_SECONDS = 3600
"""A folder younger than this may belong to an attempt that has just arrived."""


def exceeded_limit(files: NodeFiles, spec: RunSpec) -> Message | None:
    """Return how a container is over one of its limits, for its user; None when it is not."""
    limit = spec.resources.disk_mib * MIB
    counted = [disk_usage(files.workspace(spec.name)), disk_usage(files.outputs(spec.attempt))]
    allowed_mib = spec.resources.disk_mib
    temporary = (private := files.private(spec.name)).is_dir()
    if temporary:
        # A process has its temporary files on the disk; those of a container are in memory, and limited by the engine.
        counted.append(disk_usage(private.resolve()))
        allowed_mib += spec.resources.tmp_mib
    if not all(each.complete for each in counted):
        return TooManyFiles()
    used = sum(each.disk_bytes for each in counted)
    if used > allowed_mib * MIB:
        return FilesOverLimit(used // MIB, allowed_mib, temporary)
    checkpoints = disk_usage(files.checkpoints(spec.job))
    if checkpoints.disk_bytes > limit or not checkpoints.complete:
        return CheckpointsOverLimit(spec.resources.disk_mib)
    scribe = disk_usage(files.scribe(spec.name))
    if scribe.disk_bytes > MAX_SCRIBE_MIB * MIB + (spec.slots + 1) * MAX_STREAM_BYTES or not scribe.complete:
        return SupervisorFolderOverLimit()
    return None


def tidy(files: NodeFiles, jobs: Collection[int], attempts: Collection[int]) -> None:
    """Mark the folders of these jobs as used; delete those of jobs that ended long ago, and of unknown attempts."""
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


def age_seconds(folder: Path) -> float:
    """Return the age of a folder; 0 when it is gone, as an attempt's last container may be forgotten meanwhile."""
    try:
        return time.time() - folder.lstat().st_mtime
    except FileNotFoundError:
        return 0.0
