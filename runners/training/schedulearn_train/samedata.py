"""Checks that all ranks have the same data, in the same order.

Each rank takes its part of a batch by position. If a script gives each rank a part of the data, or splits and shuffles it
with other random numbers on each, some samples count several times per epoch and others never, which no parameter shows.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

ROWS = 3
MAX_VALUES = 32
"""So many values of each row of a tensor are compared."""
TOLERANCE = 1e-3
"""Values may have been computed on processors of different kinds."""


class Facts(NamedTuple):
    """What is compared of one rank's data."""

    structure: str
    """A digest of types, lengths and positions, which must be equal."""
    values: list[float]
    """Some values of its tensors, which may differ by rounding."""


def describe_data(data: Any) -> Facts:
    """Describe the data without loading a sample, which may take long or be random."""
    structure = blake2b(digest_size=16)
    values: list[float] = []
    for exact, numbers in _describe_parts(data):
        structure.update(exact.encode())
        values += numbers
    return Facts(structure.hexdigest(), values)


def _describe_parts(data: Any) -> Iterator[tuple[str, list[float]]]:
    yield f"{type(data).__name__} {len(data)};", []
    if isinstance(data, Subset):
        places = np.asarray(data.indices)
        yield blake2b(places.tobytes() if places.dtype.kind in "iu" else repr(places.tolist()).encode()).hexdigest(), []
        yield from _describe_parts(data.dataset)
    elif isinstance(data, ConcatDataset):
        for each in data.datasets:
            yield from _describe_parts(each)
    elif isinstance(data, TensorDataset) and len(data):
        for tensor in data.tensors:
            rows = tensor.detach()[[at * (len(data) - 1) // (ROWS - 1) for at in range(ROWS)]].reshape(ROWS, -1)
            rows = torch.view_as_real(rows).reshape(ROWS, -1) if rows.is_complex() else rows
            yield f"{tuple(tensor.shape)};", rows[:, :MAX_VALUES].double().reshape(-1).tolist()


def ranks_with_other_structure(facts: Sequence[Facts]) -> list[int]:
    """Return the ranks that train on other samples than rank 0: their data differ in type, length or positions."""
    return [rank for rank, each in enumerate(facts) if each.structure != facts[0].structure]


def ranks_with_other_values(facts: Sequence[Facts]) -> list[int]:
    """Return the ranks whose values differ from those of rank 0, which is on purpose for some randomly generated data."""
    return [rank for rank, each in enumerate(facts) if not _are_close(facts[0].values, each.values)]


def _are_close(one: Sequence[float], other: Sequence[float]) -> bool:
    a, b = torch.tensor(one), torch.tensor(other)
    same = torch.isclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * TOLERANCE, equal_nan=True)
    return bool(same.all())


def message(ranks: Sequence[int]) -> str:
    *some, last = map(str, ranks)
    who = f"ranks {', '.join(some)} and {last} have" if some else f"rank {last} has"
    return (
        f"The ranks do not have the same data: {who} other data than rank 0, or another order. Every rank takes its part of "
        "each batch by position, so pass the whole data set to Run on each rank: do not split it by rank, and use a "
        "generator with a fixed seed to split or shuffle it"
    )
