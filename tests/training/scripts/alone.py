"""What the library does in a single process: each function below is a case, its answer a line of the JSON that is printed."""

import json
import math
import os
import signal
import tempfile
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from schedulearn_train import Checkpoints, Run, Stopped, notice, should_stop
from schedulearn_train.gru import Gru
from schedulearn_train.predict import Predictor, ScoredPredictor, Smoothing
from schedulearn_train.world import SingleProcessWorld
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(3)
DATA = TensorDataset(torch.randn(40, 4, generator=generator), torch.randn(40, 1, generator=generator))


def new_run(folder: str, **options: Any) -> Run:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if options.pop("schedule", False):
        options["extra_state"] = {"schedule": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)}
    return Run(
        model, optimizer, DATA, batch_size=8, checkpoints=Checkpoints(folder), world=SingleProcessWorld(), **options
    )


def train(run: Run, epochs: int, scaler: Any = None, stop_at: int = 0) -> list[float]:
    for _ in run.epochs(epochs):
        for x, y in run.batches():
            run.step(nn.functional.mse_loss(run.model(x), y, reduction="sum"), scaler)
            if run.steps == stop_at:
                run.save()
                return weights(run)
        for item in run._training.extra_state.values():
            item.step()
    return weights(run)


def weights(run: Run) -> list[float]:
    return [float(each) for weight in run.module.parameters() for each in weight.detach().flatten()]


def complaint(work: Any) -> str:
    try:
        work()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def a_mode_that_is_none(folder: str) -> str:
    return complaint(lambda: new_run(folder, mode="k-sync"))


def the_form_chooses_the_mode(folder: str) -> str:
    os.environ["SCHEDULEARN_MODE"] = "asp"
    try:
        return new_run(folder, mode="bsp_balanced").mode
    finally:
        del os.environ["SCHEDULEARN_MODE"]


def a_whole_batch_of_ranks_apart(folder: str) -> str:
    return complaint(lambda: new_run(folder, mode="adaptive_ksync", sync_batch_norm=True))


def a_model_that_normalises(folder: str) -> list[bool]:
    """In the middle of a step a copy and what was stored compute by themselves; in the end nothing of us is left in it."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    before = {*model[1].__dict__}
    run = Run(
        model,
        sgd(model),
        DATA,
        batch_size=8,
        sync_batch_norm=True,
        checkpoints=Checkpoints(folder),
        world=SingleProcessWorld(),
    )
    found: list[bool] = []

    @run.elastic
    def train() -> None:
        for _ in run.epochs(1):
            for x, y in run.batches():
                torch.save(model, f"{folder}/model")
                stored = torch.load(f"{folder}/model", weights_only=False)
                found[:] = [torch.equal(other(x), model(x)) for other in (deepcopy(model), stored)]
                run.step(nn.functional.mse_loss(run.model(x), y, reduction="sum"))

    train()
    return [*found, {*model[1].__dict__} == before]


def a_step_without_a_batch(folder: str) -> str:
    return complaint(lambda: new_run(folder).step(torch.zeros((), requires_grad=True)))


def a_loss_for_each_sample(folder: str) -> str:
    run = new_run(folder)
    x, y = next(run.batches())
    return complaint(lambda: run.step(nn.functional.mse_loss(run.model(x), y, reduction="none")))


def a_batch_without_a_step(folder: str) -> str:
    return complaint(lambda: list(new_run(folder).batches()))


def a_batch_of_tensors_is_what_a_data_loader_gives(folder: str) -> bool:
    run = new_run(folder)
    batches = [run._training.sampler.take(8).tolist() for _ in range(5)]
    run._training.sampler.start(0)
    found: list[Any] = []
    for own in run.batches():
        found.append(own)
        run.step(nn.functional.mse_loss(run.model(own[0]), own[1], reduction="sum"))
    for own, theirs in zip(found, DataLoader(DATA, batch_sampler=batches), strict=True):
        if type(own) is not type(theirs) or not all(map(torch.equal, own, theirs)):
            return False
    return True


def a_class_made_of_a_tensor_data_set_has_its_own_samples(folder: str) -> bool:
    class Doubled(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            return tuple(2 * each for each in super().__getitem__(index))

    (x, y), (other, _) = (
        next(
            iter(
                Run(
                    model, sgd(model), data, batch_size=8, checkpoints=Checkpoints(folder), world=SingleProcessWorld()
                ).batches()
            )
        )
        for data in (DATA, Doubled(*DATA.tensors))
        for model in (nn.Linear(4, 1),)
    )
    return torch.equal(2 * x, other) and len(y) == 8


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def loaded_ahead_is_the_same(folder: str) -> bool:
    return train(new_run(f"{folder}/a", num_workers=2), 2) == train(new_run(f"{folder}/b"), 2)


def goes_on_as_if_never_stopped(folder: str) -> bool:
    """With Adam's moments and the schedule of the rate, in mid-epoch."""
    whole = train(new_run(f"{folder}/a", schedule=True), 12)
    train(new_run(f"{folder}/b", schedule=True), 12, stop_at=33)
    again = new_run(f"{folder}/b", schedule=True)
    return again.steps == 33 and train(again, 12) == whole


def a_scaler_changes_nothing(folder: str) -> float:
    scaled = train(new_run(f"{folder}/a"), 2, torch.amp.GradScaler("cpu", init_scale=2.0**10))
    plain = train(new_run(f"{folder}/b"), 2)
    return max(abs(one - other) for one, other in zip(scaled, plain, strict=True))


def a_broken_checkpoint_is_passed_over(folder: str) -> int:
    run = new_run(folder)
    train(run, 2)
    run.checkpoints.save(7, run.state())
    run.checkpoints.path(9).write_bytes(b"half of one")
    found = run.checkpoints.newest()
    return found[0] if found else -1


def only_the_last_are_kept(folder: str) -> list[int]:
    run = new_run(folder)
    for step in (1, 5, 3, 12):
        run.checkpoints.save(step, run.state())
    return run.checkpoints.steps()


def stopped_by_a_signal(folder: str) -> list[Any]:
    """It stops at the next look, with a checkpoint."""
    run = new_run(folder)
    before = should_stop()
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        train(run, 3)
    except Stopped as stopped:
        found = run.checkpoints.newest()
        return [before, stopped.code, found is not None and found[0] == run.steps]
    return []


def stopped_by_a_notice(folder: str) -> list[Any]:
    path = Path(folder, "notice.json")
    os.environ["SCHEDULEARN_NOTICE"] = str(path)
    path.write_text(json.dumps({"reason": "preempted", "grace_seconds": 10, "until": time.time() + 10}))
    found = notice()
    return [found.reason, 8 < found.grace_seconds <= 10] if found else []


def error_of(predictor: Predictor, trace: list[float]) -> float:
    scored = ScoredPredictor(predictor)
    for value in trace:
        scored.observe(value)
    return scored.error or 0.0


def a_network_sees_a_rhythm(folder: str) -> list[Any]:
    """Periodic load: its error beside that of smoothing. Twice the same seed, twice the same error."""
    chance = torch.Generator().manual_seed(5)
    noise = torch.randn(600, generator=chance).tolist()
    trace = [0.5 * math.sin(2 * math.pi * number / 12) + 0.02 * noise[number] for number in range(600)]
    network = error_of(Gru(seed=1), trace)
    return [network, error_of(Smoothing(), trace), network == error_of(Gru(seed=1), trace)]


CASES = (
    a_batch_of_tensors_is_what_a_data_loader_gives, a_class_made_of_a_tensor_data_set_has_its_own_samples,
    a_step_without_a_batch, a_loss_for_each_sample, a_batch_without_a_step, loaded_ahead_is_the_same, goes_on_as_if_never_stopped,
    a_scaler_changes_nothing, a_broken_checkpoint_is_passed_over, only_the_last_are_kept, a_network_sees_a_rhythm,
    a_model_that_normalises, stopped_by_a_signal, stopped_by_a_notice, a_mode_that_is_none, the_form_chooses_the_mode, a_whole_batch_of_ranks_apart,
)  # fmt: skip

if __name__ == "__main__":
    answers = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            answers[case.__name__] = case(folder)
    print(json.dumps(answers))
