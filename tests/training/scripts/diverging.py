"""What makes ranks train different models, on three of them: prints JSON of what became of each.

Numbers are the largest difference, on any rank, from a loop by hand in one process; texts are the errors of each rank.
"""

import io
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import torch
from schedulearn_train import Checkpoints, Run, divergence
from schedulearn_train.late_parameters import LateParameters
from schedulearn_train.world import find_world
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import Subset, TensorDataset

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
SAMPLES, BATCH, EPOCHS, THAWS_AT = 41, 16, 6, 7
CLIP = 0.4
"""Of the gradient's length, so that a step also depends on the gradients of other layers."""
generator = torch.Generator().manual_seed(8)
x, y = torch.randn(SAMPLES, 5, generator=generator), torch.randn(SAMPLES, 1, generator=generator)
PARTS = [(9, 4, 3), (0, 15, 1), (5, 5, 6), (16, 0, 0)]
world = find_world()


def made(seed: int = 1, frozen: bool = False) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
    model[0].requires_grad_(not frozen)
    return model


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.02)


class Scaled(nn.Module):
    """A loss that learns, too, and is no part of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, out: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return mse_loss(self.factor * out, wanted, reduction="sum")


def summed(out: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return mse_loss(out, wanted, reduction="sum")


def trained(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    at: Callable[[Run], None] = lambda _run: None,
    loss: Callable[..., torch.Tensor] = summed,
    own_model: bool = False,
    **options: Any,
) -> list[float]:
    """All parameters in the end. ``at`` is called before each step."""
    divergence.MIN_INTERVAL_SECONDS = 0.0
    with tempfile.TemporaryDirectory() as empty:
        folder = Checkpoints(empty)
        run = Run(model, optimizer, TensorDataset(x, y), batch_size=BATCH, checkpoints=folder, world=world, **options)
        for _ in run.epochs(EPOCHS):
            run.parts = PARTS[run.steps % len(PARTS)]
            last = -1
            for inputs, wanted in run.batches():
                if run.steps != last:
                    last = run.steps
                    at(run)
                run.step(loss((model if own_model else run.model)(inputs), wanted))
                run.parts = PARTS[run.steps % len(PARTS)]
    return values(model, loss)


def by_hand(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    at: Callable[[int], None] = lambda _step: None,
    loss: Callable[..., torch.Tensor] = summed,
    clip_norm: float | None = CLIP,
) -> list[float]:
    orders = (np.random.default_rng((0, epoch)).permutation(SAMPLES) for epoch in range(EPOCHS))
    batches = [order[first : first + BATCH] for order in orders for first in range(0, SAMPLES, BATCH)]
    for step, rows in enumerate(batches):
        at(step)
        optimizer.zero_grad()
        (loss(model(x[rows]), y[rows]) / len(rows)).backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
    return values(model, loss)


def values(*things: Any) -> list[float]:
    modules = [each for each in things if isinstance(each, nn.Module)]
    return [float(each) for module in modules for values in module.parameters() for each in values.detach().flatten()]


def off(mine: list[float], wanted: list[float]) -> float:
    """NaN if there is one."""
    worst = max(abs(one - other) for one, other in zip(mine, wanted, strict=True))
    return float(torch.tensor(world.gather(worst)).max())


def errors(work: Callable[[], object]) -> list[str]:
    """By rank; empty where it went well."""
    try:
        work()
    except (RuntimeError, ValueError) as error:
        return [str(each) for each in world.gather(f"{type(error).__name__}: {error}")]
    return [str(each) for each in world.gather("")]


def a_beginning_of_its_own_on_each_rank() -> float:
    mine = made(seed=10 + world.rank)
    model = made(seed=10)
    return off(trained(mine, sgd(mine), clip_norm=CLIP), by_hand(model, sgd(model)))


def another_order_of_samples_on_each_rank() -> float:
    mine, model = made(), made()
    return off(trained(mine, sgd(mine), clip_norm=CLIP, seed=3 * world.rank), by_hand(model, sgd(model)))


def a_layer_that_is_unfrozen(**options: Any) -> float:
    mine, model = made(frozen=True), made(frozen=True)

    def thaw(model: nn.Sequential, step: int) -> None:
        if step == THAWS_AT:
            model[0].requires_grad_(True)

    found = trained(mine, sgd(mine), lambda run: thaw(mine, run.steps), clip_norm=CLIP, **options)
    return off(found, by_hand(model, sgd(model), lambda step: thaw(model, step)))


def a_layer_that_is_frozen() -> float:
    """torchrun's ranks end with an error then."""
    mine, model = made(), made()

    def freeze(model: nn.Sequential, step: int) -> None:
        if step == THAWS_AT:
            model[0].requires_grad_(False)

    found = trained(mine, sgd(mine), lambda run: freeze(mine, run.steps), clip_norm=CLIP)
    return off(found, by_hand(model, sgd(model), lambda step: freeze(model, step)))


def a_layer_that_is_given_to_the_optimizer_later() -> float:
    mine, model = made(frozen=True), made(frozen=True)

    def add(model: nn.Sequential, optimizer: torch.optim.Optimizer, step: int) -> None:
        if step == THAWS_AT:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.03})

    one, other = sgd(mine[2]), sgd(model[2])
    found = trained(mine, one, lambda run: add(mine, one, run.steps), clip_norm=CLIP)
    return off(found, by_hand(model, other, lambda step: add(model, other, step)))


def a_loss_of_the_own_model(**options: Any) -> float:
    """And not of ``run.model``."""
    mine, model = made(), made()
    return off(trained(mine, sgd(mine), own_model=True, clip_norm=CLIP, **options), by_hand(model, sgd(model)))


def a_parameter_outside_the_model() -> float:
    """Horovod's optimizer refuses such."""

    def optimizer_of(model: nn.Module, loss: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.05, momentum=0.9)

    mine, model, own, other = made(), made(), Scaled(), Scaled()
    found = trained(mine, optimizer_of(mine, own), loss=own)
    return off(found, by_hand(model, optimizer_of(model, other), loss=other, clip_norm=None))


def changed_by(change: Callable[[nn.Sequential], None], **options: Any) -> list[str]:
    """Rank 2 changes its weights before step 4."""
    mine = made()

    def maybe(run: Run) -> None:
        if run.steps == 4 and run.rank == 2:
            with torch.no_grad():
                change(mine)

    return errors(lambda: trained(mine, sgd(mine), maybe, **options))


def written(model: nn.Sequential) -> None:
    model[0].weight[1, 2] += 0.5


def rounded(model: nn.Sequential) -> None:
    model[0].weight *= 1 + 1e-9


def updates_of_its_own_on_each_rank() -> list[str]:
    """As by a second optimizer."""
    mine = made()

    def update(run: Run) -> None:
        own = mse_loss(mine(x[run.rank :: run.size]), y[run.rank :: run.size])
        for weight, gradient in zip(
            mine[0].parameters(), torch.autograd.grad(own, list(mine[0].parameters())), strict=True
        ):
            weight.data.sub_(gradient, alpha=0.02)

    return errors(lambda: trained(mine, sgd(mine), update))


def other_data_on_each_rank(kind: str) -> list[str]:
    whole = TensorDataset(x, y)
    mine = list(range(SAMPLES))
    if kind == "order" and world.rank == 1:
        mine.reverse()
    if kind == "parts":
        mine = mine[world.rank :: world.size][: SAMPLES // world.size]
    data = TensorDataset(x[mine], y[mine]) if kind == "tensors" else Subset(whole, mine)
    if kind == "tensors" and world.rank == 2:
        data = TensorDataset(x.flip(0), y.flip(0))
    if kind == "rounding":
        data = TensorDataset(x * (1 + 1e-6 * world.rank), y)
    model = made()

    def train() -> None:
        with tempfile.TemporaryDirectory() as empty:
            run = Run(model, sgd(model), data, batch_size=9, checkpoints=Checkpoints(empty))
            for _ in run.epochs(1):
                for a, b in run.batches():
                    run.step(mse_loss(run.model(a), b))

    return errors(train)


def with_an_earlier_release(old: int, work: Callable[[], Any]) -> Any:
    """Where that rank sends what earlier releases sent, and does what they did."""
    gather = LateParameters.gather
    if world.rank == old:
        LateParameters.gather = lambda self, number: [int(each) for each in world.gather(int(number))]
    try:
        return work()
    finally:
        LateParameters.gather = gather


def as_ever() -> float:
    mine, model = made(), made()
    return off(trained(mine, sgd(mine), clip_norm=CLIP), by_hand(model, sgd(model)))


printed = io.StringIO()
with redirect_stdout(printed):
    data = {kind: other_data_on_each_rank(kind) for kind in ("order", "parts", "tensors", "same", "rounding")}
answers = {
    "beginning": a_beginning_of_its_own_on_each_rank(),
    "order": another_order_of_samples_on_each_rank(),
    "unfrozen": a_layer_that_is_unfrozen(),
    "unfrozen, in passes": a_layer_that_is_unfrozen(micro_batch_size=4),
    "given later": a_layer_that_is_given_to_the_optimizer_later(),
    "own model": a_loss_of_the_own_model(),
    "own model, in passes": a_loss_of_the_own_model(micro_batch_size=4),
    "written": changed_by(written),
    "written, allowed": changed_by(written, check_divergence=False),
    "rounded": changed_by(rounded),
    "own updates": updates_of_its_own_on_each_rank(),
    "data": data,
    "printed": [line for line in printed.getvalue().splitlines() if "same data" in line],
    "earlier releases": [with_an_earlier_release(old, as_ever) for old in (0, 1)],
    "earlier, unfrozen": with_an_earlier_release(1, lambda: errors(a_layer_that_is_unfrozen)),
}
if "torchrun" in sys.argv:
    answers["outside"] = a_parameter_outside_the_model()
else:
    answers["frozen"] = a_layer_that_is_frozen()
if world.rank == 0:
    print(json.dumps(answers))
world.close()
