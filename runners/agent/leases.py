"""The leases of containers, without which each ends itself."""

import contextlib
import os
import time

from runners.host.node_files import NodeFiles, read_json_beneath, write_atomic
from runners.launch.fence import COUNTS_FROM_REPORT, lease_content

LEASE_BYTES = 160
"""The size of each lease: one that is written over an older one leaves nothing of it."""


def accepts_late_renewal(files: NodeFiles, name: str) -> bool:
    """Whether a late reply may renew this container's lease: a supervisor of an earlier release counts from the reply."""
    return read_json_beneath(files.scribe(name), "status.json").get("lease") == COUNTS_FROM_REPORT


def renew_lease(files: NodeFiles, name: str, sent_at: float) -> None:
    """Write a lease: a number that the supervisor has not seen before, and when the report was sent.

    On a full disk the old file is overwritten, which needs no space.
    """
    lease = files.control(name) / "lease"
    content = lease_content(time.time_ns(), sent_at).ljust(LEASE_BYTES)
    try:
        write_atomic(lease, content, sync=False)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(lease, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.pwrite(handle, content, 0)
            finally:
                os.close(handle)
