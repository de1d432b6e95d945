"""Cuts the parameters of a model, laid end to end, into shards."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

SHARD_BYTES = 4 * 1024 * 1024
"""The parameters of one shard by default: with fewer, the fixed cost of a message outweighs its content."""


class Piece(NamedTuple):
    """The elements from ``start`` to before ``stop`` of a tensor, numbered as in its memory."""

    tensor: int
    start: int
    stop: int


def shard_count(size: int, places: int, ranks: int, asked: int | None = None) -> int:
    """Return the number of shards for ``size`` bytes: as ``asked``, or one per ``SHARD_BYTES``.

    There is at most one per rank, and per each of the ``places`` where a shard may begin.
    """
    return max(1, min(asked or math.ceil(size / SHARD_BYTES), ranks, places))


def cut(lengths: Sequence[int], count: int) -> list[slice]:
    """Return the elements of each of ``count`` shards, about equally many in each. Tensors are cut."""
    whole = sum(lengths)
    if not 0 < count <= whole:
        raise ValueError(f"{whole} elements cannot be cut into {count} shards")
    return _slices([whole * number // count for number in range(count + 1)])


def cut_between_tensors(lengths: Sequence[int], count: int) -> list[slice]:
    """Return the same without cutting tensors: at least one in each shard, and shards as equal as that allows."""
    if not 0 < count <= len(lengths):
        raise ValueError(f"{len(lengths)} tensors cannot be cut into {count} shards")
    ends = list(itertools.accumulate(lengths))
    bounds = [0]
    for number in range(1, count):
        aim = ends[-1] * number / count
        nearest = min(range(1, len(lengths)), key=lambda bound: abs(ends[bound - 1] - aim))  # noqa: B023
        bounds.append(max(bounds[-1] + 1, min(nearest, len(lengths) - (count - number))))
    return _slices([0, *(ends[bound - 1] for bound in bounds[1:]), ends[-1]])


def _slices(bounds: Sequence[int]) -> list[slice]:
    return [slice(start, stop) for start, stop in itertools.pairwise(bounds)]


def pieces(lengths: Sequence[int], part: slice) -> Iterator[Piece]:
    """Yield the pieces of tensors in a shard, in order."""
    begins = itertools.accumulate(lengths, initial=0)
    for tensor, (length, begin) in enumerate(
        zip(lengths, begins, strict=False)
    ):  # the last begin has no length: it is the end
        start, stop = max(0, part.start - begin), min(length, part.stop - begin)
        if start < stop:
            yield Piece(tensor, start, stop)
