"""Steps that all ranks make together: passes over a batch, weighted losses, and one update by the summed gradients."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from . import batch_norm
from .clock import StepClock
from .late_parameters import LateParameters
from .loading import Batch
from .meter import Meter
from .rates import factor, scaled
from .training_state import TrainingState


class LockstepUpdates:
    """Makes updates of the whole batch, and measures them."""

    def __init__(self, training: TrainingState, clock: StepClock, statistics: batch_norm.Statistics) -> None:
        self._training, self._clock, self._statistics = training, clock, statistics
        self._meter = Meter(training.module.parameters())
        self.late_parameters = LateParameters(training.world, training.optimizer)
        self._passes = 1
        self._loss_sum, self._loss_samples = torch.zeros((), device=training.device), 0
        self._last_weight: tuple[tuple[float, Any], torch.Tensor] = (0.0, None), self._loss_sum

    def begin_pass(self, batch: Batch) -> None:
        training = self._training
        training.world.begin_pass(batch.number, batch.passes)
        if batch.number == 0:
            training.optimizer.zero_grad()  # before the forward pass, which can use their memory
            self._clock.begin()
            if batch.passes != self._passes and batch.total == training.batch_size and training.rank == 0:
                print(f"Each batch is computed in {batch.passes} passes")  # noqa: T201
                self._passes = batch.passes
        self._clock.add_samples(batch.own)

    def step(self, loss: torch.Tensor, batch: Batch, scaler: Any, measured: bool) -> bool:
        """Add the gradients of one pass, and make the update after the last one. Returns whether it was the last."""
        training = self._training
        samples = training.losses.weight(loss, batch.own)
        measured = measured and batch.total == training.batch_size and batch.is_last
        with self._meter.measure_own() if measured else nullcontext():
            scaled_loss = scaler.scale(loss) if scaler else loss
            scaled_loss.backward(self._loss_weight(scaled_loss, samples * batch.weight / batch.total))
        self._statistics.batch = None
        if batch.own:
            self._loss_sum.add_(loss.detach(), alpha=samples)
        self._loss_samples += batch.own
        if not batch.is_last:
            return False
        self._clock.backward_done()
        self.late_parameters.sum_gradients()
        self._update(batch, scaler, measured)
        self._clock.end()
        training.sampler.take(batch.total)
        training.steps += 1
        training.reporter.reached(training.steps)
        return True

    def _loss_weight(self, loss: torch.Tensor, part: float) -> torch.Tensor:
        """Return the weight of a loss in the mean over the whole batch.

        Most are like the one before, which is used again: creating a tensor is work for a GPU.
        """
        if (part, loss.dtype) != self._last_weight[0]:
            self._last_weight = (part, loss.dtype), torch.full_like(loss, part)
        return self._last_weight[1]

    def _update(self, batch: Batch, scaler: Any, measured: bool) -> None:
        training = self._training
        optimizer, rule = training.optimizer, training.batch.lr_scaling
        noise_scale = training.noise.scale if rule == "adascale" else None
        rate = factor(rule, training.batch_size, training.batch.initial, noise_scale)
        with scaled(optimizer, rate) if rate != 1 else nullcontext(), training.world.reduced(optimizer):
            if scaler:
                scaler.unscale_(optimizer)
            if measured:
                scale = scaler.get_scale() if scaler else 1.0
                self._meter.measure_whole(training.steps, batch.own, batch.total, training.size == 1, scale)
            if training.clip_norm is not None:
                nn.utils.clip_grad_norm_(training.module.parameters(), training.clip_norm)
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()

    def losses(self) -> tuple[float, int]:
        """Return the sum of this rank's losses and the number of its samples since ``reset_losses``."""
        return float(self._loss_sum), self._loss_samples

    def reset_losses(self) -> None:
        self._loss_sum.zero_()
        self._loss_samples = 0

    def gradient_reading(self) -> tuple[float, float, float, float]:
        """Return what ``meter.Reading`` describes, of the last measured step since the last call."""
        return self._meter.read()
