"""The ranks of a training, whoever started them: Horovod, torchrun, or nobody (then there is one).

All of them sum. Every rank calls the same methods in the same order.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from . import launched
from .settling import settle
from .vectors import alike, fill_present, flat_with_presence

if TYPE_CHECKING:
    from .run import Run

Result = TypeVar("Result")
Joined = tuple[nn.Module, Any]
"""What to call instead of model and optimiser."""


class Post(Protocol):
    """Tensors on CPUs from one rank to another, in order."""

    def send(self, tensor: torch.Tensor, to: int) -> None: ...

    def receive(self, tensor: torch.Tensor, source: int | None = None) -> int:
        """Waits for the next one of this rank, or of any. Whose it was."""


class World(Protocol):
    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def local_rank(self) -> int: ...

    @property
    def elastic(self) -> bool:
        """Ranks come and go while it runs."""

    @property
    def writes(self) -> bool:
        """This rank writes checkpoints: one in each folder that may differ from the others'."""

    def sum(self, values: list[float]) -> list[float]:
        """The sums over all ranks, the same to the last bit on each."""

    def all_reduce(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """The sum over all ranks, of that name where names count. What was given may be overwritten."""

    def gather(self, fact: Any) -> list[Any]:
        """What each rank gave, by rank. Anything that can be pickled."""

    def share(self, fact: Any, root: int = 0) -> Any:
        """What the ``root`` gave."""

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        """The ``root``'s; the others give one of its kind, which is overwritten."""

    def post(self) -> Post:
        """Raises ``ValueError`` where ranks can only compute in step."""

    def joined(self, model: nn.Module, optimizer: torch.optim.Optimizer, ready: Callable[[], None]) -> Joined:
        """With these, gradients are those of all ranks, summed. ``ready`` is called when this rank's own are there, if
        ``backward`` waits for the others."""

    def passes(self, number: int, count: int) -> None:
        """The next ``backward`` is that of pass ``number``, the first being 0. The ranks' gradients are summed in the last one
        of ``count``; in those before it they are added to those that this rank has."""

    def unsummed(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """Return the parameters to update of which, after ``backward``, only this rank's own gradients are known: those
        that did not require any when ``joined`` was called, for example. The same on all ranks of the same program."""

    def add_up(self, parameters: Sequence[torch.Tensor]) -> None:
        """Sum the gradients of those parameters too, before ``summed`` or ``optimizer.step()``."""

    def summed(self, optimizer: Any) -> Any:
        """A context in which ``optimizer.step()`` takes the gradients as they are: on entry they have been summed."""

    def keep_going(self, run: "Run", train: Callable[[], Result]) -> Result:
        """Calls ``train``, again whenever ranks have come or gone where that is no new start."""

    def commit(self) -> None:
        """This is where to go on from. Here ranks may come and go: then it does not return."""

    def close(self) -> None:
        """All ranks are done."""


def find_world() -> World:
    """By the variables that the launcher set."""
    if launched.by_horovod():
        return HorovodWorld()
    if launched.by_torchrun():
        return TorchWorld()
    return Alone()


class _Fixed:
    """Ranks that stay the same while they run, and gradients that ``backward`` has summed."""

    elastic = False

    @contextmanager
    def summed(self, optimizer: Any) -> Iterator[None]:
        yield

    def keep_going(self, run: "Run", train: Callable[[], Result]) -> Result:
        return train()

    def commit(self) -> None:
        pass


class Alone(_Fixed):
    rank, size, local_rank, writes = 0, 1, 0, True

    def sum(self, values: list[float]) -> list[float]:
        return values

    def all_reduce(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        return tensor

    def gather(self, fact: Any) -> list[Any]:
        return [fact]

    def share(self, fact: Any, root: int = 0) -> Any:
        return fact

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        return tensor

    def post(self) -> Post:
        return Nobody()

    def joined(self, model: nn.Module, optimizer: torch.optim.Optimizer, ready: Callable[[], None]) -> Joined:
        return model, optimizer

    def passes(self, number: int, count: int) -> None:
        pass

    def unsummed(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        return []

    def add_up(self, parameters: Sequence[torch.Tensor]) -> None:
        pass

    def close(self) -> None:
        pass


class HorovodWorld:
    """Gradients are summed beside ``backward``, and waited for by ``step`` (or ``summed``)."""

    def __init__(self) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        hvd.init()
        if torch.cuda.is_available():
            torch.cuda.set_device(hvd.local_rank())
        self.elastic = launched.by_elastic_horovod()
        self._optimizer: Any = None
        self._rest = _Rest()
        self._state: Any = None

    @property
    def rank(self) -> int:
        return int(self._hvd.rank())

    @property
    def size(self) -> int:
        return int(self._hvd.size())

    @property
    def local_rank(self) -> int:
        return int(self._hvd.local_rank())

    @property
    def writes(self) -> bool:
        return self.rank == 0

    def sum(self, values: list[float]) -> list[float]:
        hvd = self._hvd
        return list(hvd.allreduce(torch.tensor(values, dtype=torch.float64), op=hvd.Sum, name="slt.sum").tolist())

    def all_reduce(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        return self._hvd.allreduce_(tensor, op=self._hvd.Sum, name=name)

    def gather(self, fact: Any) -> list[Any]:
        return list(self._hvd.allgather_object(fact, name="slt.gather"))

    def share(self, fact: Any, root: int = 0) -> Any:
        return self._hvd.broadcast_object(fact, root_rank=root, name="slt.share")

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        return self._hvd.broadcast_(tensor, root_rank=root, name="slt.broadcast")

    def post(self) -> Post:
        raise ValueError("Horovod's ranks can only compute in step: choose the launcher torchrun for this mode")

    def joined(self, model: nn.Module, optimizer: torch.optim.Optimizer, ready: Callable[[], None]) -> Joined:
        hvd = self._hvd
        self._optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Sum)
        self._rest = _Rest()
        return model, self._optimizer

    def passes(self, number: int, count: int) -> None:
        if number == 0 and count != self._optimizer.backward_passes_per_step:
            self._optimizer.set_backward_passes_per_step(count)

    def unsummed(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        return [] if self.size == 1 else self._rest.of(optimizer, self._optimizer._requires_update)

    def add_up(self, parameters: Sequence[torch.Tensor]) -> None:
        """From now on: Horovod's optimizer sums what its hooks did not see in ``synchronize``, under the parameter's name, as
        that of a rank does which was started after the parameter began to require gradients."""
        for parameter in parameters:
            names = self._optimizer._parameter_names
            names.setdefault(parameter, f"slt.parameter.{len(names)}")
            self._optimizer._requires_update.add(parameter)
        self._rest = _Rest()

    @contextmanager
    def summed(self, optimizer: Any) -> Iterator[None]:
        optimizer.synchronize()
        for parameter in optimizer._requires_update:
            if not parameter.requires_grad:  # it was frozen: of zeros an optimizer would still make updates
                parameter.grad = None
        with optimizer.skip_synchronize():
            yield

    def keep_going(self, run: "Run", train: Callable[[], Result]) -> Result:
        if not self.elastic:
            return train()
        from .horovod_state import RunState

        self._state = RunState(run)
        result: Result = self._hvd.elastic.run(lambda state: train())(self._state)
        return result

    def commit(self) -> None:
        if self._state is not None:
            self._state.commit()

    def close(self) -> None:
        pass  # Horovod ends with the process


class TorchWorld(_Fixed):
    """DistributedDataParallel, made to sum instead of to average. When ranks come or go, all of them begin anew."""

    def __init__(self) -> None:
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        on_gpu = torch.cuda.is_available()
        if on_gpu:
            torch.cuda.set_device(self.local_rank)
        if not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        self._together: Any = None
        self._joined: set[torch.Tensor] = set()
        self._rest = _Rest()
        self._has_summed = False
        """Since the first pass of this step."""

    @property
    def writes(self) -> bool:
        return self.local_rank == 0

    def sum(self, values: list[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor)
        return list(tensor.tolist())

    def all_reduce(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        dist.all_reduce(tensor)
        return tensor

    def gather(self, fact: Any) -> list[Any]:
        facts: list[Any] = [None] * self.size
        dist.all_gather_object(facts, fact)
        return facts

    def share(self, fact: Any, root: int = 0) -> Any:
        facts = [fact]
        dist.broadcast_object_list(facts, src=root)
        return facts[0]

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        dist.broadcast(tensor, src=root)
        return tensor

    def post(self) -> Post:
        return GlooPost()

    def joined(self, model: nn.Module, optimizer: torch.optim.Optimizer, ready: Callable[[], None]) -> Joined:
        def summing(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            ready()
            self._has_summed = True
            done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            return done.then(lambda future: future.value()[0])

        together = nn.parallel.DistributedDataParallel(model)
        together.register_comm_hook(None, summing)
        self._together = together
        self._joined, self._rest = {each for each in model.parameters() if each.requires_grad}, _Rest()
        return together, optimizer

    def passes(self, number: int, count: int) -> None:
        self._has_summed = self._has_summed and number > 0
        self._together.require_backward_grad_sync = number == count - 1  # which is what its no_sync() does

    def unsummed(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """All of them where the loss does not come from the model that ``joined`` returned."""
        return self._rest.of(optimizer, self._joined) if self._has_summed else _Rest().of(optimizer, set())

    def add_up(self, parameters: Sequence[torch.Tensor]) -> None:
        for some in alike(parameters):
            vector = flat_with_presence(some)
            dist.all_reduce(vector)
            fill_present(some, vector)

    def close(self) -> None:
        dist.barrier()  # nobody leaves while another rank still needs it
        dist.destroy_process_group()
        settle()  # DistributedDataParallel keeps the group's threads


class _Rest:
    """An optimizer's parameters that are not among those that are summed anyway. Usually there are none, and to look at all
    of them in each step would cost a small network's."""

    def __init__(self) -> None:
        self._count = -1
        self._parameters: list[torch.Tensor] = []

    def of(self, optimizer: torch.optim.Optimizer, summed: set[torch.Tensor]) -> list[torch.Tensor]:
        """Return those that require gradients now."""
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if count != self._count:
            parameters = (each for group in optimizer.param_groups for each in group["params"])
            self._count, self._parameters = count, [each for each in parameters if each not in summed]
        return [each for each in self._parameters if each.requires_grad]


class Nobody:
    """Of a rank that is alone."""

    def send(self, tensor: torch.Tensor, to: int) -> None:
        raise ValueError("there is no other rank")

    def receive(self, tensor: torch.Tensor, source: int | None = None) -> int:
        raise ValueError("there is no other rank")


class GlooPost:
    """All ranks make one together."""

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo")

    def send(self, tensor: torch.Tensor, to: int) -> None:
        dist.send(tensor, to, group=self._group)

    def receive(self, tensor: torch.Tensor, source: int | None = None) -> int:
        return int(dist.recv(tensor, source, group=self._group))
