"""What all ranks decide together at sync points: stops, checkpoints, the batch size and its parts, reports, comparisons."""

import time
from collections.abc import Sequence

from . import stopping
from .allocation import split_proportionally
from .balance import SPEED_FIELDS, Speed, SpeedReport, is_representative, rebalance
from .clock import StepClock
from .divergence import Comparison
from .lockstep import LockstepUpdates
from .stopping import Stopped
from .sync_points import COMPARES, SyncValues, chosen_batch, means, steps_between
from .synchrony import Expected, should_leave_out_worker
from .training_state import TrainingState

FIRST_INTERVAL_STEPS = 3
"""The steps after the first sync point until the next one, which is the first that knows how fast the ranks are."""


class Coordinator:
    """Makes the decisions of sync points, equal on all ranks because they follow from sums over all ranks."""

    def __init__(
        self, training: TrainingState, updates: LockstepUpdates, clock: StepClock, comparison: Comparison
    ) -> None:
        self._training, self._updates, self._clock, self._comparison = training, updates, clock, comparison
        self.restart()

    def restart(self) -> None:
        """Forget what belongs to other ranks: their number may have changed."""
        training = self._training
        self._speed = Speed(training.mode.predictor, training.seed)
        self._clock.read()
        self._updates.reset_losses()
        self._comparison.restart()
        self._next, self._fresh = training.steps + 1, True
        self._last_at, self._last_step = time.monotonic(), training.steps

    def should_measure(self) -> bool:
        """Return whether the next step is one whose gradients are measured: the last before a sync point."""
        ahead = self._next - self._training.steps
        return ahead <= 1 or (ahead == 2 and self._training.size == 1)  # a single rank compares two steps

    def after_step(self) -> None:
        """Hold a sync point if it is due. Raises ``Stopped`` when all ranks have to stop."""
        training = self._training
        if training.steps >= self._next or not training.sampler.left:
            self._sync()

    def _sync(self) -> None:
        training, now = self._training, time.monotonic()
        own, speed = self._own_values(now), self._own_speed()
        before, after = SPEED_FIELDS * training.rank, SPEED_FIELDS * (training.size - training.rank - 1)
        summed = training.world.sum([*own, *[0.0] * before, *speed, *[0.0] * after])
        values, rest = SyncValues(*summed[: len(own)]), summed[len(own) :]
        reports = [SpeedReport(*rest[at : at + SPEED_FIELDS]) for at in range(0, len(rest), SPEED_FIELDS)]
        training.loss = values.loss / values.samples if values.samples else float("nan")
        self._updates.reset_losses()
        self._learn_noise(values)
        self._last_at, self._last_step, fresh, self._fresh = now, training.steps, self._fresh, False
        between = steps_between(values.step_seconds)
        self._next = training.steps + (min(FIRST_INTERVAL_STEPS, between) if fresh else between)
        if values.reports >= COMPARES:
            self._comparison.compare(training.steps)
        if values.reports % COMPARES and training.rank == 0:
            self._report(values.step_seconds, reports)
        parts = self._split(int(values.batch), reports)
        stops = values.stops == training.size if training.world.elastic else values.stops > 0
        if stops or values.saves:
            training.save()
        if stops:
            raise Stopped(0)
        training.world.commit()
        if training.mode.is_adaptive and training.epochs and not (fresh or training.is_last):
            self._maybe_leave_lockstep(reports, parts)

    def _split(self, batch_size: int, reports: Sequence[SpeedReport]) -> tuple[int, ...]:
        """Set the size and the parts of the next batches. Returns the parts before they were balanced."""
        training = self._training
        if batch_size != training.batch_size:
            training.batch_size = batch_size
            training.parts = split_proportionally(batch_size, training.parts)
        parts = training.parts
        if training.mode.splits_by_speed:
            training.parts = rebalance(reports, parts, training.micro_batch_sizes)
        return parts

    def _maybe_leave_lockstep(self, reports: Sequence[SpeedReport], parts: Sequence[int]) -> None:
        """Start the server if leaving out a rank pays with the ``parts`` so far: new ones take a sync point or two."""
        training = self._training
        expected = [Expected(report.computing, part) for report, part in zip(reports, parts, strict=True)]
        if should_leave_out_worker(expected):
            training.uses_server = True
            training.server.begin(training.epochs)

    def _own_values(self, now: float) -> SyncValues:
        training = self._training
        own, inverse, difference, whole = self._updates.gradient_reading()
        loss, samples = self._updates.losses()
        values = SyncValues(float(stopping.should_stop()), loss, samples, own, inverse, inverse > 0)
        if training.rank:
            return values
        compares = self._updates.late_parameters.all_ranks_can_sum and self._comparison.is_due(now, training.is_last)
        batch, limits = training.batch_size, training.batch
        return values._replace(
            difference=difference,
            whole=whole,
            step_seconds=(now - self._last_at) / max(1, training.steps - self._last_step),
            saves=training.seconds_since_save(now) >= training.checkpoints.every_seconds,
            batch=batch if training.server_client else chosen_batch(batch, limits.minimum, limits.maximum),
            reports=float(not self._fresh and training.reporter.due(training.is_last)) + COMPARES * compares,
        )

    def _learn_noise(self, values: SyncValues) -> None:
        training = self._training
        if values.difference:
            training.noise.observe_single_rank(values.difference, values.whole, training.batch_size)
        elif values.measured > 1:
            own, inverse = values.own / values.measured, values.inverse / values.measured
            training.noise.observe(own, inverse, values.whole, training.batch_size)

    def _own_speed(self) -> SpeedReport:
        steps = self._clock.read()
        samples, computing, waiting = means(steps)
        speed = self._speed
        if not self._fresh:  # the first steps are slower
            # A split holds until the next sync point, so single steps do not matter.
            part = self._training.parts[self._training.rank]
            whole, computed, _ = means([step for step in steps if is_representative(step[0], part)])
            speed.observe(whole, computed)
        predicted = speed.sample_seconds(), speed.fixed_seconds()
        return SpeedReport(*predicted, speed.error(), speed.standard_error(), samples, computing, waiting)

    def _report(self, seconds: float, reports: Sequence[SpeedReport]) -> None:
        training = self._training
        sampler, noise, limits = training.sampler, training.noise, training.batch
        done = sampler.epoch + 1 - sampler.left / sampler.length
        training.reporter.step(
            step=training.steps,
            epoch=sampler.epoch,
            done=done / training.epochs if training.epochs else None,
            total=training.epochs * sampler.length or None,
            batch=training.batch_size,
            ranks=training.size,
            seconds=seconds,
            loss=training.loss,
            batches=(limits.initial, limits.minimum, limits.maximum),
            noise=(noise.sqr, noise.var) if noise.known else None,
        )
        training.reporter.ranks([report.report(part) for report, part in zip(reports, training.parts, strict=True)])
        training.reporter.flush()
