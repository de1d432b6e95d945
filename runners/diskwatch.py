"""What a container may fill, and whether it has.

Three bounds, because three things are kept for different times: workspace and outputs share ``disk_mib``; checkpoints,
which outlive the attempt, have as much again; and what only the supervisor should write has what logs can need.
"""

from runners.log_shipper import MOST_STREAM
from runners.nodefiles import NodeFiles, disk_usage
from runners.spec import RunSpec

MIB = 1 << 20
SCRIBE_MIB = 64
"""For everything in scribe/ that is no log."""


def over_limit(files: NodeFiles, spec: RunSpec) -> str:
    """One sentence for the user when a container has filled what it may; empty when it has not."""
    limit = spec.resources.disk_mib * MIB
    workspace, outputs = disk_usage(files.workspace(spec.name)), disk_usage(files.outputs(spec.attempt))
    if not (workspace.complete and outputs.complete):
        return "It has too many files, or folders too deep, in /workspace and /outputs."
    used = workspace.disk_bytes + outputs.disk_bytes
    if used > limit:
        return (
            f"It filled {used // MIB:,} MiB of /workspace and /outputs; its limit is {spec.resources.disk_mib:,} MiB."
        )
    checkpoints = disk_usage(files.checkpoints(spec.job))
    if checkpoints.disk_bytes > limit or not checkpoints.complete:
        return f"Its /checkpoints are over the limit of {spec.resources.disk_mib:,} MiB. Delete old ones as it goes."
    scribe = disk_usage(files.scribe(spec.name))
    if scribe.disk_bytes > SCRIBE_MIB * MIB + (spec.slots + 1) * MOST_STREAM or not scribe.complete:
        return "It wrote where only its supervisor writes, and far too much."
    return ""
