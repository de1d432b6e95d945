"""The ranks that train together, started by Horovod, by torchrun, or as a single process.

All reductions are sums. Every rank calls the same methods in the same order.
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
from .vectors import fill_present, flatten_with_presence, group_by_type

if TYPE_CHECKING:
    from .run import Run

Result = TypeVar("Result")
Wrapped = tuple[nn.Module, Any]
"""The model and the optimiser to use in place of the user's, so that gradients are summed over the ranks."""


class Channel(Protocol):
    """Sends CPU tensors from one rank to another, in order."""

    def send(self, tensor: torch.Tensor, to: int) -> None: ...

    def receive(self, tensor: torch.Tensor, source: int | None = None) -> int:
        """Wait for the next tensor of the ``source``, or of any rank, and return the rank that sent it."""


class World(Protocol):
    """The rank group of this process, and the collective operations of the launcher that started it."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def local_rank(self) -> int: ...

    @property
    def elastic(self) -> bool:
        """Whether ranks may join and leave while the program runs."""

    @property
    def writes(self) -> bool:
        """Whether this rank writes checkpoints: one rank does for each checkpoint folder."""

    def sum(self, values: list[float]) -> list[float]:
        """Return the sums over all ranks, equal to the last bit on each."""

    def all_reduce(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """Return the sum over all ranks. Horovod matches tensors by ``name``. The tensor may be overwritten."""

    def gather(self, fact: Any) -> list[Any]:
        """Return what each rank passed, by rank: anything that can be pickled."""

    def share(self, fact: Any, root: int = 0) -> Any:
        """Return what the ``root`` passed: anything that can be pickled."""

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        """Return the tensor of the ``root``. The other ranks pass one of the same shape, which is overwritten."""

    def open_channel(self) -> Channel:
        """Open a channel, on all ranks at once. Raises ``ValueError`` where ranks can only compute in lockstep."""

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer, ready: Callable[[], None]) -> Wrapped:
        """Wrap model and optimiser so that gradients are summed over the ranks.

        If ``backward`` waits for other ranks, ``ready`` is called when this rank's own gradients are computed.
        """

    def begin_pass(self, number: int, count: int) -> None:
        """Announce that the next ``backward`` is pass ``number``, from 0, of ``count``.

        Only the last pass sums the gradients over the ranks; the others accumulate them on this rank.
        """

    def unreduced(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """Return the parameters to update whose gradients ``backward`` did not sum over the ranks.

        These are, for example, parameters that did not require gradients when ``wrap`` was called. The list is the same
        on all ranks of the same program.
        """

    def reduce(self, parameters: Sequence[torch.Tensor]) -> None:
        """Sum the gradients of those parameters over the ranks, before ``reduced`` or ``optimizer.step()``."""

    def reduced(self, optimizer: Any) -> Any:
        """Wait for the sums of the gradients. In this context ``optimizer.step()`` does not sum them again."""

    def run_elastic(self, run: "Run", train: Callable[[], Result]) -> Result:
        """Call ``train``, and call it again when ranks have joined or left, unless that restarts the program."""

    def commit(self) -> None:
        """Mark the state to continue from. Ranks may join or leave here, and then this does not return."""

    def close(self) -> None:
        """Leave the rank group, when all ranks are done."""


def find_world() -> World:
    """Return the world of the launcher that started this rank, found by its environment variables."""
    if launched.by_horovod():
        return HorovodWorld()
    if launched.by_torchrun():
        return TorchWorld()
    return SingleProcessWorld()


class _FixedWorld:
    """Ranks that stay the same while they run, with gradients that ``backward`` has summed."""

    elastic = False

    @contextmanager
    def reduced(self, optimizer: Any) -> Iterator[None]:
        yield

    def run_elastic(self, run: "Run", train: Callable[[], Result]) -> Result:
        return train()

    def commit(self) -> None:
        pass


class SingleProcessWorld(_FixedWorld):
    """A single process."""

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

    def open_channel(self) -> Channel:
        return NoChannel()

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer, ready: Callable[[], None]) -> Wrapped:
        return model, optimizer

    def begin_pass(self, number: int, count: int) -> None:
        pass

    def unreduced(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        return []

    def reduce(self, parameters: Sequence[torch.Tensor]) -> None:
        pass

    def close(self) -> None:
        pass


class HorovodWorld:
    """Ranks of Horovod. Gradients are summed during ``backward``; ``step``, or ``reduced``, waits for them."""

    def __init__(self) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        hvd.init()
        if torch.cuda.is_available():
            torch.cuda.set_device(hvd.local_rank())
        self.elastic = launched.by_elastic_horovod()
        self._optimizer: Any = None
        self._unreduced = _UnreducedParameters()
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

    def open_channel(self) -> Channel:
        raise ValueError("Horovod's ranks can only compute in step: choose the launcher torchrun for this mode")

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer, ready: Callable[[], None]) -> Wrapped:
        hvd = self._hvd
        self._optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Sum)
        self._unreduced = _UnreducedParameters()
        return model, self._optimizer

    def begin_pass(self, number: int, count: int) -> None:
        if number == 0 and count != self._optimizer.backward_passes_per_step:
            self._optimizer.set_backward_passes_per_step(count)

    def unreduced(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        return [] if self.size == 1 else self._unreduced.find(optimizer, self._optimizer._requires_update)

    def reduce(self, parameters: Sequence[torch.Tensor]) -> None:
        """Sum the gradients of those parameters in this step and all later ones.

        In ``synchronize``, Horovod's optimizer sums what its hooks did not see, under the parameter's name. A rank that was
        started after the parameter began to require gradients does the same.
        """
        for parameter in parameters:
            names = self._optimizer._parameter_names
            names.setdefault(parameter, f"slt.parameter.{len(names)}")
            self._optimizer._requires_update.add(parameter)
        self._unreduced = _UnreducedParameters()

    @contextmanager
    def reduced(self, optimizer: Any) -> Iterator[None]:
        optimizer.synchronize()
        for parameter in optimizer._requires_update:
            if not parameter.requires_grad:  # it was frozen, and an optimizer makes updates with zeros, too
                parameter.grad = None
        with optimizer.skip_synchronize():
            yield

    def run_elastic(self, run: "Run", train: Callable[[], Result]) -> Result:
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


class TorchWorld(_FixedWorld):
    """Ranks of torchrun, with a DistributedDataParallel that sums instead of averaging.

    When ranks join or leave, torchrun restarts all of them.
    """

    def __init__(self) -> None:
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        on_gpu = torch.cuda.is_available()
        if on_gpu:
            torch.cuda.set_device(self.local_rank)
        if not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        self._wrapped: Any = None
        self._reduced_by_backward: set[torch.Tensor] = set()
        self._unreduced = _UnreducedParameters()
        self._has_reduced = False
        """``backward`` has summed gradients over the ranks since the first pass of this step."""

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

    def open_channel(self) -> Channel:
        return GlooChannel()

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer, ready: Callable[[], None]) -> Wrapped:
        def summing(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            ready()
            self._has_reduced = True
            done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            return done.then(lambda future: future.value()[0])

        wrapped = nn.parallel.DistributedDataParallel(model)
        wrapped.register_comm_hook(None, summing)
        self._wrapped = wrapped
        self._reduced_by_backward = {each for each in model.parameters() if each.requires_grad}
        self._unreduced = _UnreducedParameters()
        return wrapped, optimizer

    def begin_pass(self, number: int, count: int) -> None:
        self._has_reduced = self._has_reduced and number > 0
        self._wrapped.require_backward_grad_sync = number == count - 1  # which is what its no_sync() does

    def unreduced(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """Return all parameters where the loss does not come from the model that ``wrap`` returned."""
        return (
            self._unreduced.find(optimizer, self._reduced_by_backward)
            if self._has_reduced
            else _UnreducedParameters().find(optimizer, set())
        )

    def reduce(self, parameters: Sequence[torch.Tensor]) -> None:
        for some in group_by_type(parameters):
            vector = flatten_with_presence(some)
            dist.all_reduce(vector)
            fill_present(some, vector)

    def close(self) -> None:
        dist.barrier()  # no rank leaves while another one still needs it
        dist.destroy_process_group()
        settle()  # DistributedDataParallel keeps the group's threads


class _UnreducedParameters:
    """Finds an optimizer's parameters that ``backward`` does not sum.

    Usually there are none. Checking all parameters in each step would cost as much as a step of a small network.
    """

    def __init__(self) -> None:
        self._count = -1
        self._parameters: list[torch.Tensor] = []

    def find(self, optimizer: torch.optim.Optimizer, summed: set[torch.Tensor]) -> list[torch.Tensor]:
        """Return the optimizer's parameters that require gradients now and are not in ``summed``."""
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if count != self._count:
            parameters = (each for group in optimizer.param_groups for each in group["params"])
            self._count, self._parameters = count, [each for each in parameters if each not in summed]
        return [each for each in self._parameters if each.requires_grad]


class NoChannel:
    """The channel of a single process, which has no other rank."""

    def send(self, tensor: torch.Tensor, to: int) -> None:
        raise ValueError("there is no other rank")

    def receive(self, tensor: torch.Tensor, source: int | None = None) -> int:
        raise ValueError("there is no other rank")


class GlooChannel:
    """A channel over a gloo group of its own, which all ranks create together."""

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo")

    def send(self, tensor: torch.Tensor, to: int) -> None:
        dist.send(tensor, to, group=self._group)

    def receive(self, tensor: torch.Tensor, source: int | None = None) -> int:
        return int(dist.recv(tensor, source, group=self._group))
