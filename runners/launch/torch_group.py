"""An elastic ring of torchrun's kind: whenever its hosts change, its ranks are stopped and started anew.

As under torchrun, a rank is told who it is by its environment, hears of a change by SIGTERM, and goes on from the
snapshot that it has kept. Unlike torchrun, who leads holds no rank, so any host may leave; hosts may have different
numbers of ranks; and no process outlives a change, so nothing of an older ring can reach a newer one.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from runners.launch.discovery import in_order
from runners.launch.files import Host
from runners.launch.hosts import SILENT_SECONDS, Hosts, RankRun
from runners.launch.slots import Slot, assign
from runners.spec import CollectiveGroup

GATHER_SECONDS = 120.0
"""How long a ring that has lost too many ranks waits for new hosts, as an elastic one of Horovod's does."""
SETTLE_SECONDS = 3.0
"""Hosts that come one after the other cost one change."""
END_SECONDS = 60.0
"""Supervisors kill ranks after their grace; a host that was lost is known to be after its silence."""
TOLD_SECONDS = SILENT_SECONDS + 15
"""A host that was lost before a rank failed is known to be by then: its last request may have waited for a while."""
FIRST_PORT, PORTS = 29_000, 3_000
"""Where rank 0 of each ring listens: below the ports that the kernel gives away, above those of drivers."""


class TorchGroup:
    """``available``: slots by name of the hosts that may be used now. ``formed`` is told the host of each rank."""

    def __init__(
        self,
        hosts: Hosts,
        available: Callable[[], Mapping[str, int]],
        ring: CollectiveGroup,
        say: Callable[[str], None],
        formed: Callable[[list[str]], None],
    ) -> None:
        self._hosts = hosts
        self._available = available
        self._ring = ring
        self._say = say
        self._formed = formed
        self._order: list[str] = []
        """Hosts of the ring by rank: they keep their order, so that rank 0 stays where it is."""
        self._restarts = 0
        self._leaving: set[str] = set()
        """Hosts that ended their ranks themselves: they do not come back."""
        self.lacks_hosts = False
        """It ended because too few hosts were available."""

    def run(self) -> tuple[int, str]:
        """From the first ranks, or those of an earlier driver, to the end. An exit code, 0 for success, and a sentence."""
        runs = self._take_over()
        while True:
            runs = runs or self._start(self._gather())
            if not runs:
                self.lacks_hosts = True
                least = self._ring.min_ranks
                return 1, f"For {GATHER_SECONDS:.0f} seconds the ring had fewer than the {least} ranks that it needs"
            change = self._watch(runs)
            self._end(runs)
            if any(not run.ended.is_set() for run in runs):
                return 1, "A rank could not be ended, so the others cannot begin anew"
            if all(_finished(run) for run in runs):
                return 0, ""
            change = change or self._loss(runs)
            if not change:
                first = min((run for run in runs if run.code != 0), key=lambda run: run.ended_at)
                return first.code, f"Rank {first.rank} on {first.host} ended with exit code {first.code}"
            self._say(f"{change}: the ranks begin anew from their last snapshot")
            self._restarts += 1
            runs = []

    # Beginning

    def _take_over(self) -> list[RankRun]:
        """What an earlier driver has started, if nothing of it is missing."""
        found = [
            run
            for host, slots in self._hosts.found().items()
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
            self._say(f"Taking over a ring on {', '.join(self._order)}")
            self._formed([run.host for run in found])
            return found
        self._say("A part of the ring was lost: the ranks begin anew from their last snapshot")
        self._end(found)
        return []

    def _gather(self) -> list[Host]:
        """The hosts of the next ring; none when there are not enough for too long."""
        until = time.monotonic() + GATHER_SECONDS
        while True:
            chosen = choose(self._here(), self._order, self._ring.max_ranks)
            if sum(host.slots for host in chosen) >= self._ring.min_ranks:
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
        local = self._ring.driver_host.startswith("127.")
        address = self._hosts.address(home) or ("127.0.0.1" if local else home)
        self._formed([slot.hostname for slot in slots])
        common = {
            "MASTER_ADDR": address,
            "MASTER_PORT": str(FIRST_PORT + generation % PORTS),
            "TORCHELASTIC_RESTART_COUNT": str(self._restarts),
            "GROUP_WORLD_SIZE": str(len(chosen)),
        }
        return [
            self._hosts.start(
                slot.hostname,
                slot.local_rank,
                slot.rank,
                {**common, **rank_env(slot, self._order.index(slot.hostname))},
                slot.size,
                generation,
            )
            for slot in slots
        ]

    # Changing

    def _watch(self, runs: Sequence[RankRun]) -> str:
        """Until the ring shall be another one: a clause that says why. Or until it is over: an empty one."""
        members = {run.host for run in runs}
        more_since = None
        while True:
            ended = [run for run in runs if run.ended.is_set()]
            here = self._here(ended)
            if len(ended) == len(runs) or any(run.code != 0 for run in ended):
                return ""
            if left := members - here.keys():
                return f"{_list(left)} left the ring"
            more = {host.name for host in choose(here, self._order, self._ring.max_ranks)} - members
            now = time.monotonic()
            more_since = (more_since or now) if more and not ended else None  # what ends need not grow
            if more_since and now - more_since > SETTLE_SECONDS:
                return f"{_list(more)} joined the ring"
            self._hosts.wait(0.5)

    def _end(self, runs: Sequence[RankRun]) -> None:
        """All of them, as far as they have not ended by themselves."""
        for run in runs:
            self._hosts.stop(run)
        until = time.monotonic() + END_SECONDS
        while any(not run.ended.is_set() for run in runs) and time.monotonic() < until:
            self._available()  # ranks on hosts that fell silent are given up
            self._hosts.wait(0.5)

    def _loss(self, runs: Sequence[RankRun]) -> str:
        """The hosts that went, if a rank failed for that. Ranks hear of it before us: their connections break at once."""
        members = {run.host for run in runs}
        failed_at = min(run.ended_at for run in runs)
        until = time.monotonic() + TOLD_SECONDS
        self._hosts.ask(members)
        while True:
            if gone := members - self._here(runs).keys():
                return f"{_list(gone)} left the ring"
            if all(self._hosts.asked_since(name, failed_at) for name in members) or time.monotonic() > until:
                return ""
            self._hosts.wait(0.5)

    def _here(self, ended: Sequence[RankRun] = ()) -> dict[str, int]:
        """What the ring may use now."""
        self._leaving |= {run.host for run in ended if run.ending}
        return {name: slots for name, slots in self._available().items() if name not in self._leaving}


def choose(available: Mapping[str, int], before: Sequence[str], most: int) -> list[Host]:
    """The hosts of a ring: those of the last one in their order, then others by name, up to so many ranks."""
    chosen: list[Host] = []
    for name in in_order(available, before):
        if available[name] <= most:
            chosen.append(Host(name, available[name]))
            most -= available[name]
    return chosen


def rank_env(slot: Slot, group: int) -> dict[str, str]:
    """What torchrun tells a rank of itself."""
    return {
        "RANK": str(slot.rank),
        "WORLD_SIZE": str(slot.size),
        "LOCAL_RANK": str(slot.local_rank),
        "LOCAL_WORLD_SIZE": str(slot.local_size),
        "GROUP_RANK": str(group),
        "ROLE_RANK": str(slot.rank),
        "ROLE_WORLD_SIZE": str(slot.size),
        "ROLE_NAME": "default",
    }


def _finished(run: RankRun) -> bool:
    """By itself, and well."""
    return run.code == 0 and not (run.ending or run.stopped_by_us)


def _list(names: Collection[str]) -> str:
    return ", ".join(sorted(names, key=lambda name: (len(name), name)))
