"""Loads one rank's part of each batch, ahead of its use in other processes if wanted."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, TensorDataset

from .allocation import plan_passes
from .sampler import Indices, Sampler
from .settling import settle


class Batch(NamedTuple):
    """What a rank computes in one pass: its part of a batch, or a piece of that where the part does not fit into its memory."""

    content: Any
    own: int
    """Samples of this rank in this pass."""
    together: int
    """Samples of all ranks in this pass."""
    total: int
    """Samples of all ranks in all passes; with a parameter server, of this rank only."""
    number: int = 0
    """The number of this pass, from 0."""
    passes: int = 1
    """The number of passes over the batch, equal on all ranks. Gradients are summed in the last one."""

    @property
    def is_last(self) -> bool:
        return self.number == self.passes - 1

    @property
    def weight(self) -> float:
        """Return the weight of the loss: 0 for a rank without samples, which computes one of another rank to have gradients."""
        return 1.0 if self.own else 0.0


class Loader:
    """Loads the batches of one rank."""

    def __init__(self, data: Any, workers: int, device: torch.device) -> None:
        self._data, self._workers, self._device = data, workers, device

    def batches(
        self, sampler: Sampler, split: Callable[[], tuple[int, ...]], limits: Sequence[int], rank: int
    ) -> Iterator[Batch]:
        """Yield the batches that are left of the sampler's epoch. The caller moves the sampler as it uses them.

        ``split`` returns the parts of a batch when it is drawn, which is ahead of its use where other processes load it. All
        ranks draw equally far ahead, so they agree on the parts of every batch. ``limits`` are the samples that each rank
        can compute at once. All ranks make as many passes as the rank that needs the most, some without samples in the last.
        """
        drawn: deque[tuple[int, ...]] = deque()

        def indices() -> Iterator[Indices]:
            ahead = deepcopy(sampler)
            while ahead.left:
                parts = split()
                batch = ahead.take(sum(parts))
                planned = plan_passes(len(batch), parts, tuple(limits), rank)
                for number, (place, together) in enumerate(planned):
                    own = batch[place]
                    drawn.append((len(own), together, len(batch), number, len(planned)))
                    yield own if len(own) else batch[:1]

        for content in _load_batches(self._data, indices(), self._workers, self._device):
            yield Batch(content, *drawn.popleft())


def load_batch(data: Any, indices: Indices, device: torch.device) -> Any:
    """Load these samples as a batch, on the device."""
    return next(_load_batches(data, [indices], 0, device))


def _load_batches(data: Any, batches: Iterable[Indices], workers: int, device: torch.device) -> Iterator[Any]:
    if type(data) is TensorDataset and not workers:  # a subclass may return other samples
        for batch in batches:  # all samples at once: one by one took a twentieth of the time of a small network's step
            rows = torch.from_numpy(batch)
            yield [_select_rows(tensor, rows, device) for tensor in data.tensors]
        return
    if workers:
        settle()  # the loader forks
    lists = (batch.tolist() for batch in batches)
    for content in DataLoader(data, batch_sampler=lists, num_workers=workers, pin_memory=device.type == "cuda"):
        yield move_to_device(content, device)


def _select_rows(tensor: torch.Tensor, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return these rows of a tensor, on the device.

    For a GPU they are gathered in pinned memory, from which it copies them by itself. From other memory the processor would
    copy them, and wait until the GPU has finished all earlier work.
    """
    if device.type == "cuda" and not tensor.is_cuda:
        pinned = torch.empty((len(rows), *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=True)
        return torch.index_select(tensor.detach(), 0, rows, out=pinned).to(device, non_blocking=True)
    return tensor[rows.to(tensor.device, non_blocking=True)].to(device, non_blocking=True)


def move_to_device(content: Any, device: torch.device) -> Any:
    """Return the content with its tensors on the device, in the same lists, tuples and dictionaries."""
    if isinstance(content, torch.Tensor):
        return content.to(device, non_blocking=True)
    if isinstance(content, dict):
        return {name: move_to_device(item, device) for name, item in content.items()}
    if isinstance(content, list | tuple):
        items = [move_to_device(item, device) for item in content]
        return type(content)(*items) if hasattr(content, "_fields") else type(content)(items)
    return content
