"""The messages between workers and the server endpoint. Ranks exchange tensors only, nothing is pickled:

worker to endpoint  int64[8]: kind, microseconds of computing, of waiting, stop, samples, loss, number of the gradient, 0
endpoint to worker  int64[8]: kind, version, epoch, samples, 0, ...
                    int64[samples]: positions in the data set

Workers exchange gradients and parameters with the shards (``shards.py``).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch

from .server import Work
from .world import Channel

HEADER = 8


class MessageKind(IntEnum):
    READY = 0
    GRADIENT = 1
    BYE = 2


class ReplyKind(IntEnum):
    WORK = 0
    DONE = 1
    STOP = 2
    LOCKSTEP = 3
    """All workers continue in lockstep, without the server."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a worker sends to the server endpoint. Times are in seconds."""

    worker: int
    kind: MessageKind
    computing: float = 0.0
    waiting: float = 0.0
    stop: bool = False
    samples: int = 0
    loss: float = 0.0
    """The sum over the samples."""
    number: int = 0
    """Counts the gradients of this worker."""

    def header(self) -> torch.Tensor:
        (loss,) = struct.unpack("q", struct.pack("d", self.loss))
        times = (round(1e6 * self.computing), round(1e6 * self.waiting))
        return torch.tensor([self.kind, *times, self.stop, self.samples, loss, self.number, 0], dtype=torch.int64)


def parse_message(worker: int, header: Sequence[int]) -> Message:
    kind, computing, waiting, stop, samples, loss, number, _ = header
    (loss_sum,) = struct.unpack("d", struct.pack("q", loss))
    return Message(worker, MessageKind(kind), computing / 1e6, waiting / 1e6, bool(stop), samples, loss_sum, number)


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server endpoint sends to a worker."""

    kind: ReplyKind
    version: int
    work: Work | None = None

    def header(self) -> torch.Tensor:
        epoch, samples = (self.work.epoch, len(self.work.indices)) if self.work else (0, 0)
        return torch.tensor([self.kind, self.version, epoch, samples, 0, 0, 0, 0], dtype=torch.int64)


class Link(Protocol):
    """A worker's connection to the server endpoint."""

    def send(self, message: Message) -> None: ...

    def receive(self) -> Reply:
        """Wait for the reply."""

    def close(self) -> None:
        """End the connection, after the last message."""


class RemoteEndpoint:
    """The connection of a worker on another rank than the server endpoint."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def send(self, message: Message) -> None:
        self._channel.send(message.header(), 0)

    def receive(self) -> Reply:
        header = torch.empty(HEADER, dtype=torch.int64)
        self._channel.receive(header, 0)
        kind, version, epoch, samples, *_ = header.tolist()
        if kind != ReplyKind.WORK:
            return Reply(ReplyKind(kind), version)
        indices = torch.empty(samples, dtype=torch.int64)
        self._channel.receive(indices, 0)
        return Reply(ReplyKind.WORK, version, Work(version, epoch, indices.numpy()))

    def close(self) -> None:
        pass
