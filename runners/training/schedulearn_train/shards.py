"""Shards: the parameters of a parameter server, cut into parts that are on several ranks.

With a single server all gradients would pass through one machine, whose rank would do that work in addition to its own.
With shards each worker sends every shard its part of a gradient and receives its part of the parameters. The server
endpoint (``served.py``) alone decides who computes what and which gradients make an update. It sends all shards the same
commands in the same order, so all parts that a worker receives are of one version. Where the optimiser treats each element
by itself, tensors are cut; otherwise shards are cut between tensors, for any optimiser that treats one tensor at a time. The
outline follows Li et al. (OSDI'14, the parameter server); the protocol is our own:

gradients     worker to shard       int64[2]: kind, number; float[part]
commands      endpoint to shard     int64[1]: bytes; that much JSON: a list of commands
              shard to endpoint     float64[1]: a squared norm; or int64[1]: bytes; that much of a state
parameters    shard to worker       float[part]
"""

import io
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import nn

from .cuts import cut, cut_between_tensors, pieces, shard_count
from .rates import scaled
from .vectors import fill_gradients, flatten, vector_type
from .world import Channel

if TYPE_CHECKING:
    from .training_state import TrainingState

Parameters = Sequence[nn.Parameter]
State = dict[str, Any]
"""The state of an optimiser for one tensor."""
LastGradients = Sequence[tuple[int, int]]
"""Workers, each with the number of its last gradient that is not needed any more."""

BY_ELEMENT = frozenset(
    {
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
    }
)
"""Optimisers that treat each element by itself. A subclass of one of them may not."""


class Channels(NamedTuple):
    """Separate channels between the same ranks, so that each thread receives only its own messages."""

    requests: Channel
    gradients: Channel
    commands: Channel
    parameters: Channel


class GradientMessage(IntEnum):
    GRADIENT = 0
    BYE = 1


@dataclass(frozen=True, slots=True)
class Gradients:
    """A weighted sum of gradients that the shards store: worker, number of its gradient, weight."""

    terms: tuple[tuple[int, int, float], ...]

    def __mul__(self, factor: float) -> "Gradients":
        return Gradients(tuple((worker, number, weight * factor) for worker, number, weight in self.terms))

    def __add__(self, other: "Gradients") -> "Gradients":
        return Gradients((*self.terms, *other.terms))

    def __radd__(self, nothing: int) -> "Gradients":
        return self  # sum() starts with 0


class Shard(Protocol):
    """A shard, as the server endpoint sees it. Commands are executed in order."""

    def accumulate(self, gradients: Gradients) -> None:
        """Add up these gradients for the next ``step``."""

    def squared_norm(self) -> float:
        """Return the squared norm of that sum."""

    def step(self, groups: Sequence[Mapping[str, Any]], rate: float, factor: float) -> None:
        """Make an update with these options of the optimiser, ``rate`` times the learning rate and ``factor`` times the sum."""

    def send_parameters(self, workers: LastGradients) -> None:
        """Send the parameters to each worker in turn, and forget its gradients up to the given number."""

    def state(self) -> dict[str, Any]:
        """Return ``parameters``, one vector, and ``optimizer``, the optimiser's state by the tensor's place in it."""

    def end(self) -> None: ...


class LocalShard:
    """The shard of this rank. A thread receives gradients of workers; commands are called directly, or come in ``serve``."""

    def __init__(
        self, training: "TrainingState", channels: Channels, part: slice, on_failure: Callable[[Exception], None]
    ) -> None:
        self._rank, self._size, self._channels, self._on_failure = training.rank, training.size, channels, on_failure
        # The worker of this rank computes with the user's own model meanwhile, so the shard updates a copy.
        model, self.optimizer = deepcopy((training.module, training.optimizer))
        tensors = [each for each in model.parameters() if each.requires_grad]
        own_pieces = list(pieces([each.numel() for each in tensors], part))
        self._parameters = [
            _cut_out(self.optimizer, tensors[piece.tensor], slice(piece.start, piece.stop)) for piece in own_pieces
        ]
        places = {id(each): place for place, each in enumerate(_tensors(self.optimizer))}
        self._places = [places[id(each)] for each in self._parameters if id(each) in places]
        self.flat = flatten(self._parameters)
        self._sum = torch.zeros_like(self.flat)
        """The gradients of the next step, added up."""
        self._gradients: dict[tuple[int, int], torch.Tensor] = {}
        """By worker and number."""
        self._changed = threading.Condition()
        self._sent: torch.Tensor | None = None
        """Parameters for the worker of this rank, until it takes them."""
        self._broken = False
        self._thread = threading.Thread(target=self._run_guarded, args=(self._receive_gradients,), daemon=True)
        self._thread.start()

    # For workers

    def store(self, worker: int, number: int, gradient: torch.Tensor) -> None:
        with self._changed:
            self._gradients[worker, number] = gradient
            self._changed.notify_all()

    def wait_for_parameters(self) -> torch.Tensor:
        """Wait for the parameters that ``send_parameters`` sends to the worker of this rank."""
        with self._changed:
            self._changed.wait_for(lambda: self._sent is not None or self._broken)
            sent, self._sent = self._sent, None
        if sent is None:
            raise RuntimeError("the shard of this rank has failed")
        return sent

    # Commands of the server endpoint

    def accumulate(self, gradients: Gradients) -> None:
        self._sum = torch.zeros_like(self.flat)
        for worker, number, weight in gradients.terms:
            with self._changed:
                self._changed.wait_for(lambda: (worker, number) in self._gradients or self._broken)  # noqa: B023
                self._sum.add_(self._gradients[worker, number], alpha=weight)
        fill_gradients(self._parameters, self._sum)

    def squared_norm(self) -> float:
        return float(self._sum.double().square().sum())

    def step(self, groups: Sequence[Mapping[str, Any]], rate: float, factor: float) -> None:
        if factor != 1:
            fill_gradients(self._parameters, self._sum * factor)
        for own, given in zip(self.optimizer.param_groups, groups, strict=True):
            own.update(given)
        with scaled(self.optimizer, rate):
            self.optimizer.step()
        self.flat = flatten(self._parameters)

    def send_parameters(self, workers: LastGradients) -> None:
        for worker, number in workers:
            with self._changed:
                for old in [key for key in self._gradients if key[0] == worker and key[1] <= number]:
                    del self._gradients[old]
                if worker == self._rank:
                    self._sent = self.flat
                    self._changed.notify_all()
                    continue
            self._channels.parameters.send(self.flat, worker)

    def state(self) -> dict[str, Any]:
        state = self.optimizer.state_dict()["state"]
        return {"parameters": self.flat, "optimizer": {place: state[place] for place in self._places if place in state}}

    def end(self) -> None:
        self._thread.join()

    # On other ranks than that of the server endpoint

    def serve(self) -> None:
        """Execute the commands of the server endpoint until the last one."""
        self._run_guarded(self._serve)

    def _serve(self) -> None:
        channel = self._channels.commands
        while True:
            for command in json.loads(_receive_bytes(channel, 0)):
                match command["do"]:
                    case "add up":
                        self.accumulate(Gradients(tuple(map(tuple, command["terms"]))))
                    case "squared":
                        channel.send(torch.tensor([self.squared_norm()], dtype=torch.float64), 0)
                    case "step":
                        groups = [_restore_tuples(group) for group in command["groups"]]
                        self.step(groups, command["rate"], command["factor"])
                    case "give":
                        self.send_parameters(command["workers"])
                    case "state":
                        content = io.BytesIO()
                        torch.save(self.state(), content)
                        _send_bytes(channel, content.getvalue(), 0)
                    case "end":
                        return self.end()

    def _receive_gradients(self) -> None:
        header, gone = torch.empty(2, dtype=torch.int64), 0
        while gone < self._size - 1:
            worker = self._channels.gradients.receive(header)
            kind, number = header.tolist()
            if kind == GradientMessage.BYE:
                gone += 1
                continue
            gradient = torch.empty_like(self.flat)
            self._channels.gradients.receive(gradient, worker)
            self.store(worker, number, gradient)

    def _run_guarded(self, loop: Callable[[], None]) -> None:
        """Pass any error of a thread on to the worker of this rank, which ends and with it the rank group."""
        try:
            loop()
        except Exception as error:  # noqa: BLE001
            with self._changed:
                self._broken = True
                self._changed.notify_all()
            self._on_failure(error)


class RemoteShard:
    """Sends the commands of the server endpoint to a shard on another rank."""

    def __init__(self, rank: int, channel: Channel) -> None:
        self._rank, self._channel = rank, channel
        self._deferred: list[dict[str, Any]] = []

    def _command(self, do: str, **more: Any) -> None:
        content = json.dumps([*self._deferred, {"do": do, **more}]).encode()
        self._deferred.clear()
        _send_bytes(self._channel, content, self._rank)

    def accumulate(self, gradients: Gradients) -> None:
        self._deferred.append(
            {"do": "add up", "terms": gradients.terms}
        )  # sent with the next command, which always follows

    def squared_norm(self) -> float:
        self._command("squared")
        found = torch.empty(1, dtype=torch.float64)
        self._channel.receive(found, self._rank)
        return float(found)

    def step(self, groups: Sequence[Mapping[str, Any]], rate: float, factor: float) -> None:
        self._command("step", groups=[dict(group) for group in groups], rate=rate, factor=factor)

    def send_parameters(self, workers: LastGradients) -> None:
        self._command("give", workers=workers)

    def state(self) -> dict[str, Any]:
        self._command("state")
        content = io.BytesIO(_receive_bytes(self._channel, self._rank))
        # weights_only runs no code of the state. The GPU of the other rank is not on this one.
        state: dict[str, Any] = torch.load(content, weights_only=True, map_location="cpu")
        return state

    def end(self) -> None:
        self._command("end")


class ShardClient:
    """A worker's access to the shards."""

    def __init__(
        self,
        rank: int,
        channels: Channels,
        dtype: torch.dtype,
        parts: Sequence[slice],
        local_shard: LocalShard | None,
    ) -> None:
        self._rank, self._channels, self._dtype, self._local_shard = rank, channels, dtype, local_shard
        self._lengths = [part.stop - part.start for part in parts]

    def send(self, number: int, gradient: torch.Tensor) -> None:
        parts = list(enumerate(gradient.split(self._lengths)))
        first = self._rank % len(parts)  # workers start with different shards
        for shard, part in (*parts[first:], *parts[:first]):
            if shard == self._rank and self._local_shard is not None:
                self._local_shard.store(self._rank, number, part)
                continue
            self._channels.gradients.send(torch.tensor([GradientMessage.GRADIENT, number]), shard)
            self._channels.gradients.send(part, shard)

    def receive(self) -> torch.Tensor:
        """Wait for all parameters."""
        parts = [self._part(shard, length) for shard, length in enumerate(self._lengths)]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _part(self, shard: int, length: int) -> torch.Tensor:
        if shard == self._rank and self._local_shard is not None:
            return self._local_shard.wait_for_parameters()
        part = torch.empty(length, dtype=self._dtype)
        self._channels.parameters.receive(part, shard)
        return part

    def close(self) -> None:
        for shard in range(len(self._lengths)):
            if shard != self._rank:
                self._channels.gradients.send(torch.tensor([GradientMessage.BYE, 0]), shard)


def shard_slices(
    optimizer: torch.optim.Optimizer, parameters: Parameters, ranks: int, asked: int | None
) -> list[slice]:
    """Return the elements of each shard. The first ranks have one shard each."""
    lengths = [each.numel() for each in parameters]
    size = sum(lengths) * vector_type(parameters).itemsize
    if type(optimizer) in BY_ELEMENT:
        return cut(lengths, shard_count(size, sum(lengths), ranks, asked))
    return cut_between_tensors(lengths, shard_count(size, len(lengths), ranks, asked))


def merged_state(optimizer: torch.optim.Optimizer, states: Iterable[Mapping[int, State]]) -> dict[int, State]:
    """Merge the states of the shards' optimisers, by place, into that of the ``optimizer`` of the whole model."""
    found: dict[int, list[State]] = defaultdict(list)
    for state in states:
        for place, part in state.items():
            found[place].append(part)
    tensors = list(_tensors(optimizer))
    return {
        place: parts[0] if len(parts) == 1 else _merge_parts(tensors[place], parts) for place, parts in found.items()
    }


def _merge_parts(tensor: torch.Tensor, parts: Sequence[State]) -> State:
    """Merge the states of the parts of a tensor: values by element are joined, others are the same in all parts."""
    merged = {name: [part[name] for part in parts] for name in parts[0]}
    return {
        name: torch.cat([each.cpu() for each in values]).view_as(tensor) if _is_by_element(values[0]) else values[0]
        for name, values in merged.items()
    }


def _is_by_element(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _cut_out(optimizer: torch.optim.Optimizer, whole: nn.Parameter, part: slice) -> nn.Parameter:
    """Replace a tensor in the optimiser by a part of its elements, which keeps its optimiser state."""
    if part == slice(0, whole.numel()):
        return whole
    own = nn.Parameter(whole.detach().reshape(-1)[part].clone())
    for group in optimizer.param_groups:
        group["params"] = [own if each is whole else each for each in group["params"]]
    if state := optimizer.state.pop(whole, None):
        optimizer.state[own] = {
            name: value.reshape(-1)[part].clone() if _is_by_element(value) else value for name, value in state.items()
        }
    return own


def options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the options of each group of parameters, such as the learning rate, as plain values."""
    return [
        {name: _plain(value) for name, value in group.items() if name != "params"} for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, torch.Tensor) else value


def _restore_tuples(group: Mapping[str, Any]) -> dict[str, Any]:
    """Turn lists into tuples again, which optimisers need and JSON does not have."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in group.items()}


def _tensors(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    """Yield the optimiser's tensors in the order of its state."""
    for group in optimizer.param_groups:
        yield from group["params"]


def _send_bytes(channel: Channel, content: bytes, to: int) -> None:
    channel.send(torch.tensor([len(content)]), to)
    channel.send(torch.frombuffer(bytearray(content), dtype=torch.uint8), to)


def _receive_bytes(channel: Channel, source: int) -> bytes:
    length = torch.empty(1, dtype=torch.int64)
    channel.receive(length, source)
    content = torch.empty(int(length), dtype=torch.uint8)
    channel.receive(content, source)
    received: bytes = content.numpy().tobytes()
    return received
