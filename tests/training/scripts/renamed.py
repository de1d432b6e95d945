"""Trains with the old keywords and attributes of ``Run`` and with the new ones; prints JSON of what differs and was warned of."""

import json
import tempfile
import warnings
from typing import Any

import torch
from schedulearn_train import AdaptiveBatch, Checkpoints, Run, SyncMode
from schedulearn_train.renamed import OldAttribute, OldAttributes
from schedulearn_train.world import SingleProcessWorld
from torch import nn
from torch.utils.data import TensorDataset

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(3)
DATA = TensorDataset(torch.randn(40, 4, generator=generator), torch.randn(40, 1, generator=generator))
OLD = {
    "batch": 8,
    "batch_range": (4, 16),
    "rate_rule": "linear",
    "workers": 1,
    "most_samples": 5,
    "checkpoint_seconds": 9.0,
}
OLD_MODE = {"mode": "asp", "balanced": True, "predict": "blend", "k": 1, "staleness": 3.0, "shards": 1}
BATCH = AdaptiveBatch(8, minimum=4, maximum=16, lr_scaling="linear")
MODE = SyncMode("asp", balanced=True, predictor="blend", k=1, staleness=3.0, shards=1)


def trained(folder: str, **options: Any) -> tuple[Run, list[float]]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = {"schedule": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)}
    options = {name: schedule if value == "schedule" else value for name, value in options.items()}
    run = Run(model, optimizer, DATA, world=SingleProcessWorld(), checkpoints=Checkpoints(folder), **options)
    for _ in run.epochs(2):
        for x, y in run.batches():
            run.step(nn.functional.mse_loss(run.model(x), y))
    return run, [float(each) for weight in model.parameters() for each in weight.detach().flatten()]


def caught(work: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as all_warnings:
        warnings.simplefilter("always")
        result = work()
    return result, [str(each.message) for each in all_warnings if each.category is FutureWarning]


def with_attributes(run: Run) -> dict[str, list[str]]:
    """Read every old attribute twice, and return the warnings of each."""
    names = [name for name, value in vars(OldAttributes).items() if isinstance(value, OldAttribute)]
    return {name: caught(lambda name=name: (getattr(run, name), getattr(run, name)))[1] for name in names}


def set_steps(run: Run) -> None:
    for steps in (7, 8):
        run.steps = steps


with tempfile.TemporaryDirectory() as home:
    (old, old_weights), first = caught(lambda: trained(f"{home}/a", **OLD, also="schedule"))
    (_, _), again = caught(lambda: trained(f"{home}/b", **OLD, also="schedule"))
    (new, new_weights), none = caught(
        lambda: trained(f"{home}/c", batch_size=BATCH, num_workers=1, micro_batch_size=5, extra_state="schedule")
    )
    (served, served_weights), of_mode = caught(lambda: trained(f"{home}/d", batch_size=8, **OLD_MODE))
    (_, mode_weights), _ = caught(lambda: trained(f"{home}/e", batch_size=8, mode=MODE))
    attributes = with_attributes(old)
    old.least_batch, old.clip_norm, old.checkpoint_seconds = 2, 0.5, 30.0
    old.load(old.state())
    _, setting = caught(lambda: set_steps(old))
    old.model = old.module
    answers = {
        "warned": first,
        "warned again": again,
        "warned without old names": none,
        "warned of the mode": of_mode,
        "same": [old_weights == new_weights, served_weights == mode_weights],
        "same options": old._training.batch == AdaptiveBatch(8, 2, 16, "linear") and served._training.mode == MODE,
        "attributes": attributes,
        "values": [old.batch, old.base_batch, old.least_batch, old.most_batch, old.rate_rule, old.clip_norm, old.apart],
        "intervals": [old.checkpoints.every_seconds, new.checkpoints.every_seconds],
        "module": old.inner is old.module,
        "setting": [old.steps, setting],
    }
print(json.dumps(answers))
