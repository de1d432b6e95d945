"""Jobs of a fixed size: their hosts do not change, and the first rank that fails ends the others."""

from collections.abc import Callable, Sequence

from runners.launch.files import Host
from runners.launch.hosts import Hosts
from runners.launch.slots import assign, slot_env
from runners.messages import Message
from runners.messages.launch import RankEnded


def run_static(hosts: Hosts, plan: Sequence[Host], report: Callable[[str], None]) -> tuple[int, Message | None]:
    """Run all ranks from start to end. Returns an exit code, 0 for success, and a message.

    ``hosts.connected_slots`` must be called meanwhile, as the driver's main loop does, so that silent hosts are noticed.
    """
    left = [hosts.start(slot.hostname, slot.local_rank, slot.rank, slot_env(slot)) for slot in assign(plan)]
    first = None
    while left:
        ended = [run for run in left if run.ended.is_set()]
        for run in sorted(ended, key=lambda run: run.ended_at):
            left.remove(run)
            report(f"Rank {run.rank} ended with exit code {run.code}")
            if run.code != 0 and first is None:
                first = run
                if left:
                    report(f"Ending the other ranks, because rank {run.rank} failed")
        if first is not None:
            for run in left:
                hosts.stop(run)
        hosts.wait(0.5)
    if first is None:
        return 0, None
    return first.code, RankEnded(first.rank, first.host, first.code)
