"""Checks the disk limits of containers.

There are several limits, because files are kept for different times: workspace and outputs share ``disk_mib``, with ``tmp_mib``
more where temporary files are on the disk; what is written to copies of datasets has the same limit, and so have checkpoints,
which outlive the attempt; and what only the supervisor should write may be as large as logs can become.
"""

from runners.agent.log_shipper import MAX_STREAM_BYTES
from runners.host.node_files import MAX_ENTRIES, FolderWalk, NodeFiles, disk_usage, read_own_json
from runners.messages import Message
from runners.messages.containers import CheckpointsOverLimit, FilesOverLimit, SupervisorFolderOverLimit, TooManyFiles
from runners.messages.datasets import DatasetOverLimit
from runners.spec import RunSpec

MIB = 1 << 20
BLOCK_BYTES = 4096
"""Of the space of a file on the disk, the part that is not its content is less than this."""
MAX_SCRIBE_MIB = 64
"""The limit of everything in scribe/ except logs."""


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
    if excess := _excess_in_copies(files, spec, allowed_mib):
        return excess
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


def _excess_in_copies(files: NodeFiles, spec: RunSpec, allowed_mib: int) -> Message | None:
    """Return whether the job has written too much to its copies of datasets, beyond what these had at the start."""
    written = 0
    for mount in spec.datasets:
        if mount.writable and spec.role == "host":
            about = read_own_json(files.cached_datasets / mount.sha256 / "about.json") or {}
            before = int(about.get("files", 0))
            walk = FolderWalk(files.dataset_copy(spec.name, mount.name), MAX_ENTRIES + 2 * before)
            for _ in walk:
                pass
            if not walk.complete:
                return TooManyFiles()
            written += max(0, walk.disk_bytes - mount.size - BLOCK_BYTES * walk.entries)
    return DatasetOverLimit(written // MIB, allowed_mib) if written > allowed_mib * MIB else None
