"""A number for each node, usually its free GPUs, with an index from each number to its nodes."""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping

from scheduling.renamed import warn
from scheduling.types import NodeId

NO_NODES: frozenset[NodeId] = frozenset()


MAX_CACHED_SUMS = 32
"""The number of sets of nodes whose sums are kept up to date; others are added up each time."""


class Levels(dict[NodeId, int]):
    """A dictionary that finds the node with just enough without looking at every node.

    Nodes with the same number are sorted, so that ties go to the smaller id. ``allowed`` restricts a search to some
    nodes, ``without`` excludes some. The keys cannot change after the construction.
    """

    def __init__(self, counts: Mapping[NodeId, int]) -> None:
        super().__init__(counts)
        self.sum = sum(counts.values())
        self._sums: dict[Collection[NodeId], int] = {}
        self._at: dict[int, list[NodeId]] = {}
        for node in sorted(counts):
            self._at.setdefault(counts[node], []).append(node)
        self._counts = sorted(self._at)

    def __setitem__(self, node: NodeId, count: int) -> None:
        before = self[node]
        if before == count:
            return
        super().__setitem__(node, count)
        self.sum += count - before
        for some in self._sums:
            if node in some:
                self._sums[some] += count - before
        there = self._at[before]
        if len(there) == 1:
            del self._at[before]
            del self._counts[bisect_left(self._counts, before)]
        else:
            del there[bisect_left(there, node)]
        if count in self._at:
            insort(self._at[count], node)
        else:
            self._at[count] = [node]
            insort(self._counts, count)

    def sum_of(self, allowed: frozenset[NodeId] | None) -> int:
        if allowed is None:
            return self.sum
        found = self._sums.get(allowed)
        if found is None:
            found = sum(count for node, count in self.items() if node in allowed)
            if len(self._sums) < MAX_CACHED_SUMS:
                self._sums[allowed] = found
        return found

    def tightest(
        self, minimum: int, allowed: Collection[NodeId] | None = None, without: Collection[NodeId] = NO_NODES
    ) -> NodeId | None:
        """Return the node with the smallest number that is at least ``minimum``, or None."""
        for count in self._counts[bisect_left(self._counts, minimum) :]:
            for node in self._at[count]:
                if (allowed is None or node in allowed) and node not in without:
                    return node
        return None

    def fullest(self, allowed: Collection[NodeId] | None = None) -> Iterator[NodeId]:
        """Yield the nodes from the largest number down to 1. Nothing may be changed during the iteration."""
        for count in reversed(self._counts):
            if count <= 0:
                return
            for node in self._at[count]:
                if allowed is None or node in allowed:
                    yield node

    def first_after(self, last: NodeId, minimum: int, allowed: Collection[NodeId] | None = None) -> NodeId | None:
        """Return the first node after ``last``, in the cyclic order of ids, that has at least ``minimum``, or None."""
        best: tuple[bool, NodeId] | None = None
        for count in self._counts[bisect_left(self._counts, minimum) :]:
            there = self._at[count]
            start = bisect_left(there, last)
            start += start < len(there) and there[start] == last
            for node in (*there[start:], *there[:start]) if allowed is not None else (there[start % len(there)],):
                if allowed is None or node in allowed:
                    found = (node <= last, node)
                    best = found if best is None else min(best, found)
                    break
        return None if best is None else best[1]

    def following(self, last: NodeId, minimum: int, allowed: Collection[NodeId] | None = None) -> NodeId | None:
        """The old name of ``first_after``, for one release."""
        warn("Levels.following", "Levels.first_after")
        return self.first_after(last, minimum, allowed)
