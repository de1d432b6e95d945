"""Batches for one rank: its own part of each, loaded ahead by other processes if wanted."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, TensorDataset

from .allocation import plan
from .sampler import Indices, Sampler
from .settling import settle


class Batch(NamedTuple):
    """What a rank computes at once: its part of a batch, or a piece of that where more does not fit into its memory."""

    content: Any
    own: int
    """Samples of this rank that count."""
    together: int
    """Of all ranks in this pass."""
    total: int
    """Of all ranks in all passes. With a parameter server a rank counts for itself here."""
    number: int = 0
    """Of this pass; the first is 0."""
    passes: int = 1
    """That the batch takes, the same on all ranks; gradients are summed in the last one."""

    @property
    def is_last(self) -> bool:
        return self.number == self.passes - 1

    @property
    def weight(self) -> float:
        """0 for a rank without samples of its own, which computes with one of another rank's: gradients must come."""
        return 1.0 if self.own else 0.0


class Loader:
    def __init__(self, data: Any, workers: int, device: torch.device) -> None:
        self._data, self._workers, self._device = data, workers, device

    def batches(
        self, sampler: Sampler, split: Callable[[], tuple[int, ...]], most: Sequence[int], rank: int
    ) -> Iterator[Batch]:
        """What is left of the sampler's epoch; the sampler itself is only moved by who uses the batches.

        ``split`` says the parts of each batch at the moment it is drawn, which is ahead of its use where other processes
        load. All ranks draw equally far ahead, so they agree on the parts of every batch; for that all of them need as many
        passes as the one that needs ``most``, though some have no samples left for the last.
        """
        drawn: deque[tuple[int, ...]] = deque()

        def indices() -> Iterator[Indices]:
            ahead = deepcopy(sampler)
            while ahead.left:
                parts = split()
                batch = ahead.take(sum(parts))
                planned = plan(len(batch), parts, tuple(most), rank)
                for number, (place, together) in enumerate(planned):
                    own = batch[place]
                    drawn.append((len(own), together, len(batch), number, len(planned)))
                    yield own if len(own) else batch[:1]

        for content in _loaded(self._data, indices(), self._workers, self._device):
            yield Batch(content, *drawn.popleft())


def loaded(data: Any, indices: Indices, device: torch.device) -> Any:
    """These samples as a batch, on the device."""
    return next(_loaded(data, [indices], 0, device))


def _loaded(data: Any, batches: Iterable[Indices], workers: int, device: torch.device) -> Iterator[Any]:
    if type(data) is TensorDataset and not workers:  # a class made of it may do otherwise with a sample
        for batch in batches:  # all samples at once: one by one took a twentieth of a small network's step
            rows = torch.from_numpy(batch)
            yield [_rows(tensor, rows, device) for tensor in data.tensors]
        return
    if workers:
        settle()  # the loader forks
    lists = (batch.tolist() for batch in batches)
    for content in DataLoader(data, batch_sampler=lists, num_workers=workers, pin_memory=device.type == "cuda"):
        yield moved(content, device)


def _rows(tensor: torch.Tensor, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
    """These of a tensor, on the device. For a GPU they are gathered where it can fetch them by itself: from memory of any
    other kind the processor would copy, and wait until the GPU has done all it was given before."""
    if device.type == "cuda" and not tensor.is_cuda:
        pinned = torch.empty((len(rows), *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=True)
        return torch.index_select(tensor.detach(), 0, rows, out=pinned).to(device, non_blocking=True)
    return tensor[rows.to(tensor.device, non_blocking=True)].to(device, non_blocking=True)


def moved(content: Any, device: torch.device) -> Any:
    """Tensors on the device, in the lists, tuples and dictionaries they came in."""
    if isinstance(content, torch.Tensor):
        return content.to(device, non_blocking=True)
    if isinstance(content, dict):
        return {name: moved(item, device) for name, item in content.items()}
    if isinstance(content, list | tuple):
        items = [moved(item, device) for item in content]
        return type(content)(*items) if hasattr(content, "_fields") else type(content)(items)
    return content
