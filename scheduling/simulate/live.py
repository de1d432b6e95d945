"""A job in the simulation: what it held, trained and saved, and the facts that the policy gets."""

from dataclasses import dataclass, field
from typing import Any

from scheduling.simulate.inputs import Interruption, Submission
from scheduling.simulate.truth import TrainingRun
from scheduling.toolkit.job_updates import updated_job
from scheduling.types import Job, Placement


@dataclass(slots=True, eq=False)
class SimulatedJob:
    """A job in the system. ``Engine.update`` updates the values that change with time alone."""

    submission: Submission
    job: Job
    run: TrainingRun
    at: float
    """The time of all values below."""
    active_area: float
    """The integral of the number of jobs in the system when it came."""
    leaving: int = 0
    chosen: int = 0
    """The batch size that the policy chose; 0 while it leaves that to the job."""
    trains_from: float = 0.0
    before: Placement = field(default_factory=dict)
    """The GPUs that it trains on until it notices its last change, at ``notices_at``; empty when it has noticed it."""
    notices_at: float = 0.0
    trained_at: float | None = None
    """The time of its last step, where its end takes time after that."""
    version: int = 0
    attempts: int = 0
    served: float = 0.0
    paused: float = 0.0
    """GPU-seconds held without training."""
    lost: float = 0.0
    since_saved: float = 0.0
    """GPU-seconds trained since the last checkpoint."""
    saved: Any = None
    saved_at: float = 0.0
    run_seconds: float = 0.0
    served_before: float = 0.0
    """GPU-seconds before the simulation, from the snapshot that it came from."""
    preemptions: int = 0
    resizes: int = 0
    fresh: bool = True
    """Whether its ``job`` has the values at ``at``."""

    def interrupt(self, now: float, by: Interruption) -> None:
        """Interrupt the job for a change of its GPUs: it continues to train until it notices, then it pauses."""
        still = self.job.resize_seconds if by.still_seconds is None else by.still_seconds
        if not by.notice_seconds:
            self.before = {}
        elif now >= self.trains_from:
            self.before = self.job.now_on
        self.notices_at = now + by.notice_seconds
        self.trains_from = max(self.trains_from, self.notices_at + still)

    def ends_at(self, now: float) -> float:
        """Return when the job ends if nothing changes. Infinite where it will notice a change before that."""
        last = self.submission.end_seconds
        if self.trained_at is not None:
            return max(now, self.trained_at + last)
        if self.before:
            done = now + self.run.seconds_to_end(self.before, self.chosen)
            return done + last if done <= self.notices_at else float("inf")
        return max(now, self.trains_from) + self.run.seconds_to_end(self.job.now_on, self.chosen) + last

    def train(self, now: float) -> float:
        """Train from ``at`` to ``now``, except during pauses; return the GPU-seconds of training."""
        trained = 0.0
        if self.before:
            trained = self._train(self.at, min(now, self.notices_at), self.before)
            if now >= self.notices_at:
                self.before = {}
        return trained + self._train(max(self.at, self.trains_from), now, self.job.now_on)

    def _train(self, since: float, now: float, on: Placement) -> float:
        seconds = now - since
        if seconds <= 0 or self.trained_at is not None:
            return 0.0
        if self.submission.end_seconds and (left := self.run.seconds_to_end(on, self.chosen)) <= seconds:
            seconds = left
            self.trained_at = now = since + left
        gpus, trained = sum(on.values()), seconds
        every = self.submission.checkpoint_seconds
        if every is not None:
            saves = int((now - self.saved_at) / every)
            if saves > 0:
                before = seconds - (now - self.saved_at - saves * every)
                if before > 0:
                    self.run.advance(before, on, self.chosen)
                    seconds -= before
                self.saved, self.since_saved = self.run.save(), 0.0
                self.saved_at += saves * every
        self.run.advance(seconds, on, self.chosen)
        self.since_saved += seconds * gpus
        return trained * gpus

    def refresh(self) -> None:
        """Update its ``Job`` to the current values."""
        job = self.job
        known = self.run.known(job.now_on, self.chosen)
        self.job = updated_job(
            job,
            served_gpu_seconds=self.served_before + self.served,
            run_seconds=self.run_seconds,
            restarts=max(0, self.attempts - 1),
            lost_gpu_seconds_if_stopped=0.0 if self.submission.checkpoint_seconds is None else self.since_saved,
            work=known.work,
            speed=known.speed,
            free_speed=known.free_speed,
            progress=known.progress,
            batch=known.batch or job.batch,
        )
        self.fresh = True
