"""What workers and the desk of the parameter server say to each other. Between ranks go tensors, nothing pickled:

worker to desk      int64[8]: kind, microseconds of computing, of waiting, stop, samples, loss, number of the gradient, 0
desk to worker      int64[8]: kind, version, epoch, samples, 0, ...
                    int64[samples]: positions in the data set

Gradients and parameters go between workers and shards (``shards.py``).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch

from .server import Work
from .world import Post

HEADER = 8


class Says(IntEnum):
    READY = 0
    GRADIENT = 1
    BYE = 2


class Order(IntEnum):
    WORK = 0
    DONE = 1
    STOP = 2
    TOGETHER = 3
    """All of them go on in step."""


@dataclass(frozen=True, slots=True)
class Message:
    """Of a worker."""

    worker: int
    says: Says
    computing: float = 0.0
    waiting: float = 0.0
    stop: bool = False
    samples: int = 0
    loss: float = 0.0
    """The sum over the samples."""
    number: int = 0
    """Of the gradient, by this worker."""

    def header(self) -> torch.Tensor:
        (loss,) = struct.unpack("q", struct.pack("d", self.loss))
        times = (round(1e6 * self.computing), round(1e6 * self.waiting))
        return torch.tensor([self.says, *times, self.stop, self.samples, loss, self.number, 0], dtype=torch.int64)


def message(worker: int, header: Sequence[int]) -> Message:
    says, computing, waiting, stop, samples, loss, number, _ = header
    (loss_sum,) = struct.unpack("d", struct.pack("q", loss))
    return Message(worker, Says(says), computing / 1e6, waiting / 1e6, bool(stop), samples, loss_sum, number)


@dataclass(frozen=True, slots=True)
class Reply:
    told: Order
    version: int
    work: Work | None = None

    def header(self) -> torch.Tensor:
        epoch, samples = (self.work.epoch, len(self.work.indices)) if self.work else (0, 0)
        return torch.tensor([self.told, self.version, epoch, samples, 0, 0, 0, 0], dtype=torch.int64)


class Link(Protocol):
    """A worker's to the desk."""

    def tell(self, said: Message) -> None: ...

    def hear(self) -> Reply:
        """Waits for the answer."""

    def close(self) -> None:
        """After the last word."""


class Afar:
    """From another rank than the desk's."""

    def __init__(self, post: Post) -> None:
        self._post = post

    def tell(self, said: Message) -> None:
        self._post.send(said.header(), 0)

    def hear(self) -> Reply:
        header = torch.empty(HEADER, dtype=torch.int64)
        self._post.receive(header, 0)
        told, version, epoch, samples, *_ = header.tolist()
        if told != Order.WORK:
            return Reply(Order(told), version)
        indices = torch.empty(samples, dtype=torch.int64)
        self._post.receive(indices, 0)
        return Reply(Order.WORK, version, Work(version, epoch, indices.numpy()))

    def close(self) -> None:
        pass
