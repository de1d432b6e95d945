"""The modes with a parameter server on several ranks, of which the last is slow: what each comes to, as a line of JSON."""

import json
import tempfile
import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
from schedulearn_train import Checkpoints, Run, SyncMode
from schedulearn_train.server import Server
from schedulearn_train.world import SingleProcessWorld, World, find_world
from torch import nn
from torch.utils.data import TensorDataset

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
SAMPLES, BATCH = 101, 12
MODES = ("ksync", "adaptive_ksync", "kasync", "adaptive_kasync", "asp")
reported: list[dict[str, Any]] = []
"""What rank 0 reported of steps."""
ways: list[bool] = []
"""Whether the ranks used the server, each time that it changed."""
together: list[int] = []
"""Samples of this rank in each step that all ranks made together."""
on_return: list[torch.Tensor] = []
"""Weights and what the optimiser knows, when this rank came back into lockstep for the first time."""
servers: list[Server] = []
"""One for each time that they left lockstep; on rank 0."""
generator = torch.Generator().manual_seed(5)
inputs = torch.randn(SAMPLES, 6, generator=generator)
data = TensorDataset(inputs, inputs @ torch.randn(6, 1, generator=generator) + 0.5)


class Own(torch.optim.SGD):
    """Whatever it may do to a tensor: it is none of torch's, so it gets whole ones."""


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.5)


def own(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return Own(parameters, lr=0.05, momentum=0.5)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.05, weight_decay=0.01, amsgrad=True)


def trained(
    world: World,
    epochs: int,
    seconds: float = 0.0,
    slow: int = 99,
    folder: str = "",
    made: Any = sgd,
    mode: Any = "bsp",
    every_seconds: float = 60.0,
    **options: Any,
) -> tuple[Run, torch.Tensor]:
    """The run, and all weights in one row. ``seconds`` are those of a sample, of which the last rank needs four times as many
    in the first ``slow`` epochs."""
    for each in (reported, ways, on_return, together, servers):
        each.clear()
    torch.manual_seed(1)
    model = nn.Linear(6, 1)
    optimizer = made(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    with tempfile.TemporaryDirectory() as empty:
        kept = Checkpoints(folder or empty, every_seconds=every_seconds)
        run = Run(model, optimizer, data, batch_size=BATCH, mode=mode, checkpoints=kept, world=world, **options)
        training = run._training
        training.reporter.step = lambda **facts: reported.append({**facts, "at": time.monotonic()})
        net = run.model  # which a loop may keep
        for epoch in run.epochs(epochs):
            for x, y in run.batches():
                time.sleep(seconds * len(x) * (4 if world.rank == world.size - 1 and epoch < slow else 1))
                if ways[-1:] != [training.uses_server]:
                    ways.append(training.uses_server)
                    if ways[:3] == ways == [False, True, False]:
                        states = [value for state in optimizer.state.values() for value in state.values()]
                        on_return.append(
                            torch.cat([each.detach().flatten() for each in (*model.parameters(), *states)])
                        )
                together.append(0 if training.uses_server else len(x))
                client = training.server_client
                if client and client.server and client.server not in servers:
                    servers.append(client.server)
                run.step(nn.functional.mse_loss(net(x), y, reduction="sum"))
            schedule.step()
    return run, torch.cat([weight.detach().flatten() for weight in model.parameters()])


def learnt(run: Run) -> torch.Tensor:
    """What the optimiser on rank 0 knows in the end, of the shape that it must have."""
    known = [(tensor, value) for tensor, state in run.optimizer.state.items() for value in state.values()]
    assert all(value.shape in (tensor.shape, ()) for tensor, value in known)
    return torch.cat([value.flatten().double() for _, value in known]) if world.rank == 0 else torch.zeros(0)


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """On the rank where they differ most."""
    return max(world.gather(float((one - other).abs().max()) if len(one) else 0.0))


def used() -> float:
    """Samples in the last training, in epochs."""
    return float(sum(world.gather(sum(together) + sum(each.counts.used for each in servers)))) / SAMPLES


def time_reported() -> float:
    """Return the reported time of the samples between the first report and the last one, over the real time."""
    parts = [(now["done"] - before["done"]) * now["total"] / now["batch"] for before, now in pairwise(reported)]
    seconds = sum(part * now["seconds"] for part, now in zip(parts, reported[1:], strict=True))
    return seconds / (reported[-1]["at"] - reported[0]["at"])


def loss_of(weights: torch.Tensor) -> float:
    return float(nn.functional.mse_loss(inputs @ weights[:-1, None] + weights[-1], data.tensors[1]))


world = find_world()
found: dict[str, Any] = {"ranks": world.size}
in_step: dict[str, Any] = {"clip_norm": 2.0}


def waiting(shards: int) -> SyncMode:
    """Wait for the gradients of all ranks."""
    return SyncMode("ksync", k=world.size, shards=shards)


for name, made in {"SGD": sgd, "Adam": adam, "own": own}.items():
    (whole, ours), one = (
        trained(world, 3, made=made, mode=waiting(1), **in_step),
        trained(SingleProcessWorld(), 3, made=made, clip_norm=2.0)[1],
    )
    several: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = world.share(folder)  # rank 0's, which has the server
        for count in (2, 3):
            fits: dict[str, Any] = {"micro_batch_size": 3} if count == 3 else {}  # of four: it takes two passes
            sharded, weights = trained(world, 3, made=made, mode=waiting(count), **fits, **in_step)
            several[f"{count} shards"] = max(apart(weights, ours), apart(learnt(sharded), learnt(whole)))
        trained(world, 2, made=made, folder=folder, mode=waiting(3), every_seconds=0.0, **in_step)
        kept = Checkpoints(folder)
        newest, begun = world.share(kept.steps())
        if world.rank == 0:
            for step in kept.steps()[:-1]:
                kept.path(step).unlink()  # the one left is from the middle of an epoch
        world.gather(None)
        again, weights = trained(world, 3, made=made, folder=folder, mode=waiting(2), **in_step)
    goes_on = max(apart(weights, ours), apart(learnt(again), learnt(whole)))
    steps = [newest, begun, again.steps, whole.steps]
    found[name] = {"waiting_for_all_is_bsp": apart(ours, one), **several, "goes_on": goes_on, "steps": steps}
for mode in MODES:
    fits = {"micro_batch_size": 5} if mode == "ksync" else {}
    sync_mode = SyncMode("ksync", balanced=True, predictor="blend") if mode == "ksync" else mode
    run, weights = trained(world, 12, seconds=0.002, mode=sync_mode, **fits)
    everywhere, all_used = world.gather(weights.tolist()), used()
    client = run._training.server_client
    if client is not None and client.server is not None:
        counts = client.server.counts
        found[mode] = {
            "used": all_used,
            "wasted": counts.wasted,
            "updates": counts.updates,
            "staleness": max(counts.staleness),
            "loss": loss_of(weights),
            "time_reported": time_reported(),
            "same_everywhere": all(other == everywhere[0] for other in everywhere),
            "parts": client.server.parts,
            "momentum": any("momentum_buffer" in state for state in run.optimizer.state.values()),
        }
equal, weights = trained(world, 2, seconds=0.025, slow=0, mode="adaptive_ksync")
found["equal"] = {"apart": any(ways), "off": apart(weights, trained(SingleProcessWorld(), 2)[1])}
meeting, weights = trained(world, 18, seconds=0.004, slow=4, mode="adaptive_ksync", made=adam)
found["meeting"] = {
    "ways": list(ways),
    "used": used(),
    "steps": meeting.steps,
    "apart_on_return": [apart(each, world.share(each)) for each in on_return],
    "apart": apart(weights, world.share(weights)),
}
alone, _ = trained(SingleProcessWorld(), 3, mode="asp")
found["alone"] = alone.steps
if world.rank == 0:
    print(json.dumps(found))
world.close()
