"""Checks the disk limits of containers.

There are three limits, because three kinds of files are kept for different times: workspace and outputs share
``disk_mib``, with ``tmp_mib`` more where temporary files are on the disk; checkpoints, which outlive the attempt, have the same
limit once more; and what only the supervisor should write may be as large as logs can become.
"""

from runners.agent.log_shipper import MAX_STREAM_BYTES
from runners.host.node_files import NodeFiles, disk_usage
from runners.messages import Message
from runners.messages.containers import CheckpointsOverLimit, FilesOverLimit, SupervisorFolderOverLimit, TooManyFiles
from runners.spec import RunSpec

MIB = 1 << 20
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
