"""Elastic torchrun jobs: whenever the hosts change, all ranks are stopped and started again.

As under torchrun, a rank has its number and the number of ranks in its environment, receives SIGTERM at a change, and
continues from the snapshot that it has saved. Unlike with torchrun, the leader has no rank, so any host may leave; hosts may
have different numbers of ranks; and no process outlives a change, so nothing of an older group can reach a newer one.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from runners.launch.discovery import order_hosts
from runners.launch.files import Host
from runners.launch.hosts import SILENT_SECONDS, Hosts, RankRun
from runners.launch.slots import Slot, assign
from runners.messages import Message
from runners.messages.launch import LacksRanks, RankEnded, RankNotEnded
from runners.spec import CollectiveGroup

GATHER_SECONDS = 120.0
"""How long a job that has lost too many ranks waits for new hosts, as with Horovod."""
SETTLE_SECONDS = 3.0
"""Hosts that join within this time of each other cost one change."""
END_SECONDS = 60.0
"""Time for ranks to end: supervisors kill them after their grace, and a lost host is noticed by its silence."""
NOTICE_SECONDS = SILENT_SECONDS + 15
"""A host that was lost before a rank failed is noticed within this time: its last request may have been waiting."""
FIRST_PORT, PORT_COUNT = 29_000, 3_000
"""The ports at which rank 0 of each group listens: below the kernel's ephemeral ports, above those of drivers."""


class TorchGroup:
    """The ranks of an elastic torchrun job, one group after the other.

    ``available`` returns the slots of the hosts that may be used now; ``on_formed`` is called with the host of each rank.
    """

    def __init__(
        self,
        hosts: Hosts,
        available: Callable[[], Mapping[str, int]],
        group: CollectiveGroup,
        report: Callable[[str], None],
        on_formed: Callable[[list[str]], None],
    ) -> None:
        self._hosts = hosts
        self._available = available
        self._group = group
        self._report = report
        self._on_formed = on_formed
        self._order: list[str] = []
        """The hosts in the order of their ranks. They keep their order, so that rank 0 stays where it is."""
        self._restarts = 0
        self._leaving: set[str] = set()
        """Hosts that ended their ranks themselves: they are not used again."""
        self.lacks_hosts = False
        """Whether it ended because too few hosts were available."""

    def run(self) -> tuple[int, Message | None]:
        """Run the ranks, the first ones or those of an earlier driver, to the end. Returns an exit code and a message."""
        runs = self._take_over()
        while True:
            runs = runs or self._start(self._wait_for_hosts())
            if not runs:
                self.lacks_hosts = True
                return 1, LacksRanks(self._group.min_ranks, round(GATHER_SECONDS))
            change = self._watch(runs)
            self._end_ranks(runs)
            if any(not run.ended.is_set() for run in runs):
                return 1, RankNotEnded()
            if all(_has_succeeded(run) for run in runs):
                return 0, None
            change = change or self._loss_reason(runs)
            if not change:
                first = min((run for run in runs if run.code != 0), key=lambda run: run.ended_at)
                return first.code, RankEnded(first.rank, first.host, first.code)
            self._report(f"{change}: the ranks restart from their last snapshot")
            self._restarts += 1
            runs = []

    # Beginning

    def _take_over(self) -> list[RankRun]:
        """Return the ranks that an earlier driver has started, if all of them run."""
        found = [
            run
            for host, slots in self._hosts.slots_to_take_over().items()
            for slot in range(slots)
            if (run := self._hosts.take_over(host, slot)) is not None
        ]
        found.sort(key=lambda run: run.rank)
        self._order = list(dict.fromkeys(run.host for run in found))
        if not found:
            return []
        self._restarts = 1
        whole = len({run.generation for run in found}) == 1 and [run.rank for run in found] == [*range(found[0].size)]
        if whole and all(not run.ended.is_set() or run.code == 0 for run in found):
            self._report(f"Taking over the ranks on {', '.join(self._order)}")
            self._on_formed([run.host for run in found])
            return found
        self._report("Some ranks were lost: all ranks restart from their last snapshot")
        self._end_ranks(found)
        return []

    def _wait_for_hosts(self) -> list[Host]:
        """Wait for enough hosts and return those of the next group; none when there are not enough for too long."""
        until = time.monotonic() + GATHER_SECONDS
        while True:
            chosen = choose_hosts(self._usable_slots(), self._order, self._group.max_ranks)
            if sum(host.slots for host in chosen) >= self._group.min_ranks:
                return chosen
            if time.monotonic() > until:
                return []
            self._hosts.wait(0.5)

    def _start(self, chosen: Sequence[Host]) -> list[RankRun]:
        self._order = [host.name for host in chosen]
        slots = assign(chosen)
        if not slots:
            return []
        generation = self._hosts.next_number()
        home = self._order[0]
        local = self._group.driver_host.startswith("127.")
        address = self._hosts.address(home) or ("127.0.0.1" if local else home)
        self._on_formed([slot.hostname for slot in slots])
        common = {
            "MASTER_ADDR": address,
            "MASTER_PORT": str(FIRST_PORT + generation % PORT_COUNT),
            "TORCHELASTIC_RESTART_COUNT": str(self._restarts),
            "GROUP_WORLD_SIZE": str(len(chosen)),
        }
        return [
            self._hosts.start(
                slot.hostname,
                slot.local_rank,
                slot.rank,
                {**common, **torchrun_slot_env(slot, self._order.index(slot.hostname))},
                slot.size,
                generation,
            )
            for slot in slots
        ]

    # Changing

    def _watch(self, runs: Sequence[RankRun]) -> str:
        """Wait until the ranks must be restarted, and return the reason, a clause; or until one fails or all end: empty."""
        members = {run.host for run in runs}
        more_since = None
        while True:
            ended = [run for run in runs if run.ended.is_set()]
            here = self._usable_slots(ended)
            if len(ended) == len(runs) or any(run.code != 0 for run in ended):
                return ""
            if left := members - here.keys():
                return f"{_join_names(left)} left the job"
            more = {host.name for host in choose_hosts(here, self._order, self._group.max_ranks)} - members
            now = time.monotonic()
            more_since = (more_since or now) if more and not ended else None  # a job that is ending need not grow
            if more_since and now - more_since > SETTLE_SECONDS:
                return f"{_join_names(more)} joined the job"
            self._hosts.wait(0.5)

    def _end_ranks(self, runs: Sequence[RankRun]) -> None:
        """End all ranks that have not ended by themselves."""
        for run in runs:
            self._hosts.stop(run)
        until = time.monotonic() + END_SECONDS
        while any(not run.ended.is_set() for run in runs) and time.monotonic() < until:
            self._available()  # which counts ranks on silent hosts as lost
            self._hosts.wait(0.5)

    def _loss_reason(self, runs: Sequence[RankRun]) -> str:
        """Return which hosts were lost, a clause, if a rank failed because of that; else empty.

        Ranks notice it before the driver does: their connections break at once.
        """
        members = {run.host for run in runs}
        failed_at = min(run.ended_at for run in runs)
        until = time.monotonic() + NOTICE_SECONDS
        self._hosts.request_poll(members)
        while True:
            if gone := members - self._usable_slots(runs).keys():
                return f"{_join_names(gone)} left the job"
            if all(self._hosts.has_polled_since(name, failed_at) for name in members) or time.monotonic() > until:
                return ""
            self._hosts.wait(0.5)

    def _usable_slots(self, ended: Sequence[RankRun] = ()) -> dict[str, int]:
        """Return the slots by host that may be used now."""
        self._leaving |= {run.host for run in ended if run.ending}
        return {name: slots for name, slots in self._available().items() if name not in self._leaving}


def choose_hosts(available: Mapping[str, int], before: Sequence[str], max_ranks: int) -> list[Host]:
    """Choose the hosts of a group: those of the last one in their order, then others by name, up to so many ranks."""
    chosen: list[Host] = []
    left = max_ranks
    for name in order_hosts(available, before):
        if available[name] <= left:
            chosen.append(Host(name, available[name]))
            left -= available[name]
    return chosen


def torchrun_slot_env(slot: Slot, group_rank: int) -> dict[str, str]:
    """Return the variables that torchrun sets for one rank."""
    return {
        "RANK": str(slot.rank),
        "WORLD_SIZE": str(slot.size),
        "LOCAL_RANK": str(slot.local_rank),
        "LOCAL_WORLD_SIZE": str(slot.local_size),
        "GROUP_RANK": str(group_rank),
        "ROLE_RANK": str(slot.rank),
        "ROLE_WORLD_SIZE": str(slot.size),
        "ROLE_NAME": "default",
    }


def _has_succeeded(run: RankRun) -> bool:
    """Whether a rank has ended successfully and by itself."""
    return run.code == 0 and not (run.ending or run.stopped_by_us)


def _join_names(names: Collection[str]) -> str:
    return ", ".join(sorted(names, key=lambda name: (len(name), name)))
