"""Which hosts a job may use now: those of the agent's control.json whose supervisors have connected."""

from collections.abc import Callable, Iterable

from runners.launch.files import Host


class Discovery:
    """The ``HostDiscovery`` of Horovod's ElasticDriver, which calls it once a second."""

    def __init__(self, wanted: Callable[[], tuple[Host, ...]], present: Callable[[], dict[str, int]]) -> None:
        self._wanted = wanted
        self._present = present
        self.only: frozenset[str] | None = None
        """While the ranks of an earlier driver are taken over: their hosts. None: all hosts."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return a new dict each time: Horovod keeps the last one to compare."""
        present = self._present()
        return {
            host.name: min(host.slots, present[host.name])
            for host in self._wanted()
            if host.name in present and (self.only is None or host.name in self.only)
        }


def order_hosts(available: Iterable[str], before: Iterable[str]) -> list[str]:
    """Return the hosts in the order of their ranks: the earlier ones first, then new ones by name; ``h0`` gets rank 0."""
    left = set(available)
    kept = [host for host in before if host in left]
    return kept + sorted(left.difference(kept), key=lambda name: (len(name), name))
