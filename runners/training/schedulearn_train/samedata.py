"""Whether all ranks have the same data, in the same order.

Each rank takes its part of a batch by position. Where a script gives every rank a part of its own, or splits and shuffles
with other random numbers on each, some samples count several times in an epoch and others never, and no parameter shows it.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

ROWS = 3
MAX_VALUES = 32
"""Of each tensor of a row, for the comparison."""
TOLERANCE = 1e-3
"""Values may have been computed on processors of different kinds."""


class Facts(NamedTuple):
    structure: str
    """A digest of kinds, lengths and positions, which are exact."""
    values: list[float]


def facts_of(data: Any) -> Facts:
    """Return what is known of the data without loading a sample, which may take long or be random."""
    structure = blake2b(digest_size=16)
    values: list[float] = []
    for exact, numbers in _parts(data):
        structure.update(exact.encode())
        values += numbers
    return Facts(structure.hexdigest(), values)


def _parts(data: Any) -> Iterator[tuple[str, list[float]]]:
    yield f"{type(data).__name__} {len(data)};", []
    if isinstance(data, Subset):
        places = np.asarray(data.indices)
        yield blake2b(places.tobytes() if places.dtype.kind in "iu" else repr(places.tolist()).encode()).hexdigest(), []
        yield from _parts(data.dataset)
    elif isinstance(data, ConcatDataset):
        for each in data.datasets:
            yield from _parts(each)
    elif isinstance(data, TensorDataset) and len(data):
        for tensor in data.tensors:
            rows = tensor.detach()[[at * (len(data) - 1) // (ROWS - 1) for at in range(ROWS)]].reshape(ROWS, -1)
            rows = torch.view_as_real(rows).reshape(ROWS, -1) if rows.is_complex() else rows
            yield f"{tuple(tensor.shape)};", rows[:, :MAX_VALUES].double().reshape(-1).tolist()


def of_other_structure(facts: Sequence[Facts]) -> list[int]:
    """Return the ranks whose data differ from those of rank 0 in kind, length or positions: they train on other samples."""
    return [rank for rank, each in enumerate(facts) if each.structure != facts[0].structure]


def of_other_values(facts: Sequence[Facts]) -> list[int]:
    """Return the ranks whose samples differ from those of rank 0, which may be on purpose where they are made up."""
    return [rank for rank, each in enumerate(facts) if not _alike(facts[0].values, each.values)]


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    a, b = torch.tensor(one), torch.tensor(other)
    same = torch.isclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * TOLERANCE, equal_nan=True)
    return bool(same.all())


def message(ranks: Sequence[int]) -> str:
    *some, last = map(str, ranks)
    who = f"ranks {', '.join(some)} and {last} have" if some else f"rank {last} has"
    return (
        f"The ranks do not have the same data: {who} other data than rank 0, or another order. Every rank takes its part of "
        "each batch by position, so give Run the whole data set on each rank: do not split it by rank, and give what splits "
        "or shuffles it a generator with a fixed seed"
    )
