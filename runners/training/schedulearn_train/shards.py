"""The parameters behind a parameter server, cut into parts that lie on several ranks: shards.

All gradients would have to pass through one machine, and its rank would have the work of the others to do beside its own.
Here each worker sends every shard its part of a gradient and gets its part of the parameters back; who computes what, and
which gradients make an update, is decided in one place (``served.py``), which tells all shards the same commands in the same
order, so that what a worker gets from them is of one version. Tensors are cut where the optimiser looks at each element by
itself; else shards are cut between them, so that any optimiser works that looks at one tensor at a time. After Li et al.
(OSDI'14, the parameter server) in outline; the protocol is ours:

gradients     worker to shard       int64[2]: kind, number; float[part]
commands      desk to shard         int64[1]: bytes; that much JSON: a list of commands
              shard to desk         float64[1]: a squared length; or int64[1]: bytes; that much of a state
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

from .cuts import count_of, cut, cut_between, pieces
from .rates import scaled
from .vectors import fill_gradients, flat, vector_type
from .world import Post

if TYPE_CHECKING:
    from .run import Run

Parameters = Sequence[nn.Parameter]
State = dict[str, Any]
"""What an optimiser knows of one tensor."""
Given = Sequence[tuple[int, int]]
"""Workers, each with the number of the last of its gradients that will be asked for."""

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
"""Optimisers that do to an element what they would do if it were alone. What is made of one of them may not."""


class Posts(NamedTuple):
    """Lines between the same ranks, so that each thread hears only what is meant for it."""

    desk: Post
    gradients: Post
    commands: Post
    parameters: Post


class Kind(IntEnum):
    GRADIENT = 0
    BYE = 1


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients that lie with the shards, in a sum: worker, number of its gradient, weight."""

    terms: tuple[tuple[int, int, float], ...]

    def __mul__(self, factor: float) -> "Gradients":
        return Gradients(tuple((worker, number, weight * factor) for worker, number, weight in self.terms))

    def __add__(self, other: "Gradients") -> "Gradients":
        return Gradients((*self.terms, *other.terms))

    def __radd__(self, nothing: int) -> "Gradients":
        return self  # where a sum begins


class Shard(Protocol):
    """As the desk sees it. Commands are carried out in order."""

    def add_up(self, gradients: Gradients) -> None:
        """Makes their sum what the next ``step`` goes by."""

    def squared(self) -> float:
        """The squared length of that sum."""

    def step(self, groups: Sequence[Mapping[str, Any]], rate: float, factor: float) -> None:
        """An update, with the optimiser's options as they are now, ``rate`` times the learning rate, and ``factor`` times
        the sum."""

    def give(self, workers: Given) -> None:
        """Sends the parameters to workers, one after the other, of whom no gradient up to that number will be asked for any
        more."""

    def state(self) -> dict[str, Any]:
        """``parameters``: the part as one vector; ``optimizer``: what the optimiser knows, by the tensor's place in it."""

    def end(self) -> None: ...


class Here:
    """The shard of this rank: a thread takes what workers send; commands come from the desk, or over ``serve``."""

    def __init__(self, run: "Run", posts: Posts, part: slice, failed: Callable[[Exception], None]) -> None:
        self._rank, self._size, self._posts, self._failed = run.rank, run.size, posts, failed
        # The worker here computes with the user's own model meanwhile, so updates are made to a copy.
        model, self.optimizer = deepcopy((run.inner, run.optimizer))
        tensors = [each for each in model.parameters() if each.requires_grad]
        mine = list(pieces([each.numel() for each in tensors], part))
        self._parameters = [
            _cut_out(self.optimizer, tensors[piece.tensor], slice(piece.start, piece.stop)) for piece in mine
        ]
        places = {id(each): place for place, each in enumerate(_tensors(self.optimizer))}
        self._places = [places[id(each)] for each in self._parameters if id(each) in places]
        self.flat = flat(self._parameters)
        self._sum = torch.zeros_like(self.flat)
        """Of the gradients that the next step goes by."""
        self._gradients: dict[tuple[int, int], torch.Tensor] = {}
        """By worker and number."""
        self._changed = threading.Condition()
        self._given: torch.Tensor | None = None
        """For the worker here."""
        self._broken = False
        self._thread = threading.Thread(target=self._guarded, args=(self._take,), daemon=True)
        self._thread.start()

    # what workers do

    def hold(self, worker: int, number: int, gradient: torch.Tensor) -> None:
        with self._changed:
            self._gradients[worker, number] = gradient
            self._changed.notify_all()

    def take(self) -> torch.Tensor:
        """For the worker here: waits for what it was given."""
        with self._changed:
            self._changed.wait_for(lambda: self._given is not None or self._broken)
            given, self._given = self._given, None
        if given is None:
            raise RuntimeError("the shard of this rank has broken off")
        return given

    # what the desk asks

    def add_up(self, gradients: Gradients) -> None:
        self._sum = torch.zeros_like(self.flat)
        for worker, number, weight in gradients.terms:
            with self._changed:
                self._changed.wait_for(lambda: (worker, number) in self._gradients or self._broken)  # noqa: B023
                self._sum.add_(self._gradients[worker, number], alpha=weight)
        fill_gradients(self._parameters, self._sum)

    def squared(self) -> float:
        return float(self._sum.double().square().sum())

    def step(self, groups: Sequence[Mapping[str, Any]], rate: float, factor: float) -> None:
        if factor != 1:
            fill_gradients(self._parameters, self._sum * factor)
        for own, given in zip(self.optimizer.param_groups, groups, strict=True):
            own.update(given)
        with scaled(self.optimizer, rate):
            self.optimizer.step()
        self.flat = flat(self._parameters)

    def give(self, workers: Given) -> None:
        for worker, number in workers:
            with self._changed:
                for old in [key for key in self._gradients if key[0] == worker and key[1] <= number]:
                    del self._gradients[old]
                if worker == self._rank:
                    self._given = self.flat
                    self._changed.notify_all()
                    continue
            self._posts.parameters.send(self.flat, worker)

    def state(self) -> dict[str, Any]:
        known = self.optimizer.state_dict()["state"]
        return {"parameters": self.flat, "optimizer": {place: known[place] for place in self._places if place in known}}

    def end(self) -> None:
        self._thread.join()

    # on another rank than the desk's

    def serve(self) -> None:
        """Carries out what the desk sends, until the end."""
        self._guarded(self._serve)

    def _serve(self) -> None:
        post = self._posts.commands
        while True:
            for told in json.loads(_receive_bytes(post, 0)):
                match told["do"]:
                    case "add up":
                        self.add_up(Gradients(tuple(map(tuple, told["terms"]))))
                    case "squared":
                        post.send(torch.tensor([self.squared()], dtype=torch.float64), 0)
                    case "step":
                        self.step([_options_of(group) for group in told["groups"]], told["rate"], told["factor"])
                    case "give":
                        self.give(told["workers"])
                    case "state":
                        content = io.BytesIO()
                        torch.save(self.state(), content)
                        _send_bytes(post, content.getvalue(), 0)
                    case "end":
                        return self.end()

    def _take(self) -> None:
        header, gone = torch.empty(2, dtype=torch.int64), 0
        while gone < self._size - 1:
            worker = self._posts.gradients.receive(header)
            kind, number = header.tolist()
            if kind == Kind.BYE:
                gone += 1
                continue
            gradient = torch.empty_like(self.flat)
            self._posts.gradients.receive(gradient, worker)
            self.hold(worker, number, gradient)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Whatever goes wrong in a thread ends the worker here, and with it the ring."""
        try:
            work()
        except Exception as error:  # noqa: BLE001
            with self._changed:
                self._broken = True
                self._changed.notify_all()
            self._failed(error)


class There:
    """A shard on another rank, for the desk."""

    def __init__(self, rank: int, post: Post) -> None:
        self._rank, self._post = rank, post
        self._unsaid: list[dict[str, Any]] = []

    def _tell(self, do: str, **more: Any) -> None:
        content = json.dumps([*self._unsaid, {"do": do, **more}]).encode()
        self._unsaid.clear()
        _send_bytes(self._post, content, self._rank)

    def add_up(self, gradients: Gradients) -> None:
        self._unsaid.append({"do": "add up", "terms": gradients.terms})  # with what always follows

    def squared(self) -> float:
        self._tell("squared")
        found = torch.empty(1, dtype=torch.float64)
        self._post.receive(found, self._rank)
        return float(found)

    def step(self, groups: Sequence[Mapping[str, Any]], rate: float, factor: float) -> None:
        self._tell("step", groups=[dict(group) for group in groups], rate=rate, factor=factor)

    def give(self, workers: Given) -> None:
        self._tell("give", workers=workers)

    def state(self) -> dict[str, Any]:
        self._tell("state")
        content = io.BytesIO(_receive_bytes(self._post, self._rank))
        # Which runs nothing of it. The other rank's GPU is not this one's.
        state: dict[str, Any] = torch.load(content, weights_only=True, map_location="cpu")
        return state

    def end(self) -> None:
        self._tell("end")


class Parts:
    """What a worker has to do with the shards."""

    def __init__(self, rank: int, posts: Posts, dtype: torch.dtype, parts: Sequence[slice], here: Here | None) -> None:
        self._rank, self._posts, self._dtype, self._here = rank, posts, dtype, here
        self._lengths = [part.stop - part.start for part in parts]

    def send(self, number: int, gradient: torch.Tensor) -> None:
        parts = list(enumerate(gradient.split(self._lengths)))
        first = self._rank % len(parts)  # not all at one shard first
        for shard, part in (*parts[first:], *parts[:first]):
            if shard == self._rank and self._here is not None:
                self._here.hold(self._rank, number, part)
                continue
            self._posts.gradients.send(torch.tensor([Kind.GRADIENT, number]), shard)
            self._posts.gradients.send(part, shard)

    def receive(self) -> torch.Tensor:
        """All parameters."""
        parts = [self._part(shard, length) for shard, length in enumerate(self._lengths)]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _part(self, shard: int, length: int) -> torch.Tensor:
        if shard == self._rank and self._here is not None:
            return self._here.take()
        part = torch.empty(length, dtype=self._dtype)
        self._posts.parameters.receive(part, shard)
        return part

    def close(self) -> None:
        for shard in range(len(self._lengths)):
            if shard != self._rank:
                self._posts.gradients.send(torch.tensor([Kind.BYE, 0]), shard)


def parts_of(optimizer: torch.optim.Optimizer, parameters: Parameters, ranks: int, asked: int | None) -> list[slice]:
    """The elements of each shard; the first ranks have one each."""
    lengths = [each.numel() for each in parameters]
    size = sum(lengths) * vector_type(parameters).itemsize
    if type(optimizer) in BY_ELEMENT:
        return cut(lengths, count_of(size, sum(lengths), ranks, asked))
    return cut_between(lengths, count_of(size, len(lengths), ranks, asked))


def joined(optimizer: torch.optim.Optimizer, states: Iterable[Mapping[int, State]]) -> dict[int, State]:
    """What the shards' optimisers know, by place, as the ``optimizer`` of the whole model would know it."""
    found: dict[int, list[State]] = defaultdict(list)
    for state in states:
        for place, known in state.items():
            found[place].append(known)
    tensors = list(_tensors(optimizer))
    return {place: known[0] if len(known) == 1 else _whole(tensors[place], known) for place, known in found.items()}


def _whole(tensor: torch.Tensor, parts: Sequence[State]) -> State:
    """Of each element something else, or the same of all."""
    together = {name: [part[name] for part in parts] for name in parts[0]}
    return {
        name: torch.cat([each.cpu() for each in values]).view_as(tensor) if _is_by_element(values[0]) else values[0]
        for name, values in together.items()
    }


def _is_by_element(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _cut_out(optimizer: torch.optim.Optimizer, whole: nn.Parameter, part: slice) -> nn.Parameter:
    """Those elements, in place of the whole in the optimiser, which goes on knowing of them what it did."""
    if part == slice(0, whole.numel()):
        return whole
    own = nn.Parameter(whole.detach().reshape(-1)[part].clone())
    for group in optimizer.param_groups:
        group["params"] = [own if each is whole else each for each in group["params"]]
    if known := optimizer.state.pop(whole, None):
        optimizer.state[own] = {
            name: value.reshape(-1)[part].clone() if _is_by_element(value) else value for name, value in known.items()
        }
    return own


def options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Of each group of parameters: learning rate and the like, as plain values."""
    return [
        {name: _plain(value) for name, value in group.items() if name != "params"} for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, torch.Tensor) else value


def _options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """JSON knows no tuples, which optimisers want."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in group.items()}


def _tensors(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    """In the order of its state."""
    for group in optimizer.param_groups:
        yield from group["params"]


def _send_bytes(post: Post, content: bytes, to: int) -> None:
    post.send(torch.tensor([len(content)]), to)
    post.send(torch.frombuffer(bytearray(content), dtype=torch.uint8), to)


def _receive_bytes(post: Post, source: int) -> bytes:
    length = torch.empty(1, dtype=torch.int64)
    post.receive(length, source)
    content = torch.empty(int(length), dtype=torch.uint8)
    post.receive(content, source)
    return content.numpy().tobytes()
