"""Detects ranks whose parameters are no longer the same: they do not train one model any more.

At a sync point, at most every ten seconds, each rank computes a checksum of the bits of its parameters. Only where checksums
differ are the values compared, with a tolerance: processors of different kinds may round the last digit differently. The
data of the ranks are compared, too (``samedata.py``).
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from torch import nn

from . import samedata
from .world import World

MIN_INTERVAL_SECONDS = 10.0
MAX_TIME_SHARE = 1e-3
"""Comparisons take at most this share of the time: those of a large model are less frequent."""
TOLERANCE = 1e-3
"""Parameters that differ by less, relative to their largest value, are considered equal but for rounding;"""
ROUNDINGS = 4
"""so are those that differ by so many units in the last place, which is more for types of 16 bits."""
MAX_NAMES = 3
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class RanksDivergedError(RuntimeError):
    """The ranks do not train the same model any more."""


class Difference(NamedTuple):
    """A parameter that differs between ranks."""

    name: str
    part: float
    """The difference relative to the largest value; infinite where only one of the two is a number."""
    tolerance: float


class Comparison:
    """Compares the parameters of all ranks from time to time.

    Rank 0 decides when, if comparisons are ``wanted``; then all ranks call ``compare`` together.
    """

    def __init__(
        self, world: World, model: nn.Module, optimizer: torch.optim.Optimizer, data: Any, wanted: bool = True
    ) -> None:
        self._world, self._model, self._optimizer, self._wanted = world, model, optimizer, wanted
        self._data = samedata.describe_data(data) if wanted else None
        self._due_at = 0.0
        self._is_first = True
        self._has_reported_rounding = self._has_reported_values = False
        self.seconds = 0.0
        """The time of the last comparison."""

    def restart(self) -> None:
        """Compare at the next sync point, because the ranks have changed."""
        self._due_at, self._is_first = 0.0, True

    def is_due(self, now: float, is_last: bool) -> bool:
        """Return whether to compare at this sync point, as always at the last one. ``now`` is in seconds, monotonic."""
        return self._wanted and self._world.size > 1 and (is_last or now >= self._due_at)

    def compare(self, step: int) -> None:
        """Raise ``RanksDivergedError``, on all ranks, when they have diverged or have different data."""
        began = time.monotonic()
        named = dict(self._named_parameters())
        sums = checksums(list(named.values()))
        digest = blake2b(repr(sums).encode(), digest_size=16).digest()
        digests, data = zip(*self._world.gather((digest, self._data)), strict=True)
        if all(data):
            self._compare_data(data)
        if len(set(digests)) > 1:
            self._explain(step, named, sums)
        now = time.monotonic()
        self.seconds = now - began
        # The first comparison also loads code that later ones find loaded.
        pause = 0.0 if self._is_first else self.seconds / MAX_TIME_SHARE
        self._due_at, self._is_first = now + max(MIN_INTERVAL_SECONDS, pause), False

    def _compare_data(self, data: Sequence[samedata.Facts]) -> None:
        if ranks := samedata.ranks_with_other_structure(data):
            raise RanksDivergedError(f"{samedata.message(ranks)}. {UNCHECKED}")
        if (
            (ranks := samedata.ranks_with_other_values(data))
            and self._world.rank == 0
            and not self._has_reported_values
        ):
            self._has_reported_values = True
            print(samedata.message(ranks))  # noqa: T201

    def _named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        known = set()
        for name, parameter in self._model.named_parameters():
            known.add(id(parameter))
            yield name, parameter
        for number, group in enumerate(self._optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                if id(parameter) not in known:
                    yield f"parameter {place} of the optimizer's group {number}", parameter

    def _explain(self, step: int, named: dict[str, torch.Tensor], sums: list[int]) -> None:
        of_ranks = [tuple(each) for each in self._world.gather(sums)]
        usual = Counter(of_ranks).most_common(1)[0][0]
        root = of_ranks.index(usual)
        if any(len(each) != len(usual) for each in of_ranks):
            counts = ", ".join(str(len(each)) for each in of_ranks)
            raise RanksDivergedError(f"The ranks have different numbers of parameters: {counts}. {ADVICE}")
        own: list[Difference] = []
        for place, (name, parameter) in enumerate(named.items()):
            if parameter.numel() and any(each[place] != usual[place] for each in of_ranks):
                other = self._world.broadcast(parameter.detach().clone(), root)
                own.append(Difference(name, relative_difference(parameter, other), tolerance(parameter)))
        differences = self._world.gather(own)
        apart = {rank: [each for each in found if each.part > each.tolerance] for rank, found in enumerate(differences)}
        apart = {rank: found for rank, found in apart.items() if found}
        if apart:
            raise RanksDivergedError(message(step, apart, root, len(named)))
        if self._world.rank == 0 and not self._has_reported_rounding:
            self._has_reported_rounding = True
            largest = max(each.part for found in differences for each in found)
            print(  # noqa: T201
                f"The ranks' parameters differ by rounding, by at most {largest:.0e} of their largest values, as is "
                "usual between processors of different kinds"
            )


UNCHECKED = "Run(..., check_divergence=False) switches this check off."
ADVICE = (
    "Update parameters by run.step alone: a second optimizer, or code that writes weights or initialises a layer on each "
    "rank with its own random numbers, makes ranks differ, and so does code that depends on the rank. Where parameters "
    "should differ, pass Run(..., check_divergence=False)."
)


def message(step: int, apart: dict[int, list[Difference]], root: int, count: int) -> str:
    """Return the text of the error, with the ranks that differ from the ``root`` and the first parameters, of ``count``."""
    found = list({each.name: each for rank in apart.values() for each in rank}.values())
    parts = [f"{each.name} by {_percent(each.part)} of its largest value" for each in found[:MAX_NAMES]]
    more = len(found) - len(parts)
    rest = f" and {more} more" if more else ""
    ranks = [str(rank) for rank in apart]
    who = f"rank {ranks[0]} differ" if len(ranks) == 1 else f"ranks {', '.join(ranks[:-1])} and {ranks[-1]} differ"
    return (
        f"The ranks have diverged: at step {step} the parameters of {who} from those of rank {root} "
        f"in {len(found)} of {count}: {', '.join(parts)}{rest}. {ADVICE}"
    )


def _percent(part: float) -> str:
    return "more than 1000%" if part > 10 else f"{part:.1%}"


def checksums(parameters: Sequence[torch.Tensor]) -> list[int]:
    """Return a checksum of the bits of each parameter, which is the same on all kinds of processors."""
    if not parameters:
        return []
    sums = [_as_integers(each.detach()).sum(dtype=torch.int64) for each in parameters]
    return [int(each) for each in torch.stack([each.to(sums[0].device) for each in sums]).tolist()]


def _as_integers(tensor: torch.Tensor) -> torch.Tensor:
    values = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
    size = values.element_size()
    if values.numel() * size % 8 == 0 and values.storage_offset() * size % 8 == 0:
        return values.view(torch.int64)  # the fewest numbers to add up
    return values.view(INTEGERS[size])


def relative_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest value of ``other``."""
    a, b = (_as_numbers(each.detach()) for each in (one, other))
    same = (a == b) | (a.isnan() & b.isnan())
    apart = float(torch.where(same, 0.0, (a - b).abs()).max())
    if apart == 0:
        return 0.0
    largest = float(b.abs().nan_to_num(0.0, posinf=0.0).max())
    return apart / largest if apart == apart and largest else float("inf")  # noqa: PLR0124 - NaN is not itself


def _as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return values if values.dtype == torch.float64 else values.float()


def tolerance(parameter: torch.Tensor) -> float:
    exact = not (parameter.is_floating_point() or parameter.is_complex())
    return 0.0 if exact else max(TOLERANCE, ROUNDINGS * torch.finfo(parameter.dtype).eps)
