"""How long a rank computed, apart from what it waited for the others. On GPUs by events, which cost nothing at the time."""

import time
from typing import Any

import torch


class StepClock:
    """For each step: ``begin`` when its data is asked for, ``computed`` when its gradients are there, ``end`` after the update."""

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._marks: list[Any] = []
        self._samples = 0
        self._steps: list[tuple[int, Any, Any, Any]] = []

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin(self, samples: int = 0) -> None:
        self._marks, self._samples = [self._now()], samples

    def computed(self) -> None:
        """The last call of a step counts: buckets of gradients become ready one after the other."""
        del self._marks[1:]
        self._marks.append(self._now())

    def backward_done(self) -> None:
        """They are there now at the latest."""
        if len(self._marks) == 1:
            self.computed()

    def end(self) -> None:
        if len(self._marks) == 2:
            self._steps.append((self._samples, *self._marks, self._now()))
        self._marks = []

    def read(self) -> list[tuple[int, float, float]]:
        """Of the steps since the last reading: samples, seconds of computing, seconds of waiting and updating."""
        steps, self._steps = self._steps, []
        if self._on_gpu and steps:
            torch.cuda.synchronize()
        return [(samples, self._between(a, b), self._between(b, c)) for samples, a, b, c in steps]

    def _between(self, one: Any, other: Any) -> float:
        return float(one.elapsed_time(other)) / 1000 if self._on_gpu else other - one
