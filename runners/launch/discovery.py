"""Which hosts the ring may use: those the agent names in control.json whose supervisors have come."""

from collections.abc import Callable, Iterable

from runners.launch.files import Host


class Discovery:
    """What Horovod's ElasticDriver asks once a second (its ``HostDiscovery``)."""

    def __init__(self, wanted: Callable[[], tuple[Host, ...]], present: Callable[[], dict[str, int]]) -> None:
        self._wanted = wanted
        self._present = present
        self.only: frozenset[str] | None = None
        """While a ring is taken over: the hosts whose ranks form it. None: all."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """A fresh answer each time: Horovod keeps the last one to compare."""
        present = self._present()
        return {
            host.name: min(host.slots, present[host.name])
            for host in self._wanted()
            if host.name in present and (self.only is None or host.name in self.only)
        }


def in_order(available: Iterable[str], before: Iterable[str]) -> list[str]:
    """The oldest hosts keep the lowest ranks, newcomers follow by name, so ``h0`` begins as rank 0."""
    left = set(available)
    kept = [host for host in before if host in left]
    return kept + sorted(left.difference(kept), key=lambda name: (len(name), name))
