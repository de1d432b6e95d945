"""How the parameters of a model are cut into shards."""

import itertools
import math
from collections.abc import Sequence

SHARD_BYTES = 100 * 1024 * 1024
"""Of parameters that one shard holds by default."""


def count_of(size: int, tensors: int, ranks: int, asked: int | None = None) -> int:
    """Shards of ``size`` bytes: as many as asked for, or one for each ``SHARD_BYTES``; at most one for each rank and each
    tensor."""
    return max(1, min(asked or math.ceil(size / SHARD_BYTES), ranks, tensors))


def cut(lengths: Sequence[int], count: int) -> list[slice]:
    """Neighbouring tensors for each of ``count`` shards, none without any, of about equal lengths together."""
    if not 0 < count <= len(lengths):
        raise ValueError(f"{len(lengths)} tensors cannot be cut into {count} shards")
    ends = list(itertools.accumulate(lengths))
    bounds = [0]
    for number in range(1, count):
        aim = ends[-1] * number / count
        nearest = min(range(1, len(lengths)), key=lambda bound: abs(ends[bound - 1] - aim))  # noqa: B023
        bounds.append(max(bounds[-1] + 1, min(nearest, len(lengths) - (count - number))))
    return [slice(start, stop) for start, stop in itertools.pairwise([*bounds, len(lengths)])]
