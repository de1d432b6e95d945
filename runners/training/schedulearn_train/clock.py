"""Measures how long a rank computes and how long it waits for others: on GPUs by events, which hold up no work."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch


class StepClock:
    """Measures steps. Call ``begin`` when a step has its data, ``add_samples`` in each pass, ``computed`` when it has its
    gradients, and ``end`` after the update."""

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._marks: list[Any] = []
        self._waits: list[tuple[Any, Any]] = []
        self._samples = 0
        self._steps: list[tuple[int, list[tuple[Any, Any]], Any, Any, Any]] = []
        self._events: list[Any] = []
        """Events to use again: creating and destroying one takes the driver several microseconds."""

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = self._events.pop() if self._events else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _recycle(self, marks: Iterable[Any]) -> None:
        if self._on_gpu:
            self._events += marks

    def begin(self) -> None:
        self._marks, self._waits, self._samples = [self._now()], [], 0

    def add_samples(self, samples: int) -> None:
        self._samples += samples

    def computed(self) -> None:
        """Mark that gradients are computed. The last call of a step counts, as buckets become ready one after the other."""
        self._recycle(self._marks[1:])
        del self._marks[1:]
        self._marks.append(self._now())

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time in this context, while computing, as waiting for other ranks."""
        began = self._now()
        yield
        self._waits.append((began, self._now()))

    def backward_done(self) -> None:
        """Mark that gradients are computed, unless ``computed`` was called before."""
        if len(self._marks) == 1:
            self.computed()

    def end(self) -> None:
        if len(self._marks) == 2:
            self._steps.append((self._samples, self._waits, *self._marks, self._now()))
        self._marks = []

    def read(self) -> list[tuple[int, float, float]]:
        """Return samples, seconds of computing, and seconds of waiting and updating, for each step since the last call."""
        steps, self._steps = self._steps, []
        if self._on_gpu and steps:
            torch.cuda.synchronize()
        measured = [self._measure_step(*step) for step in steps]
        for _, waits, *marks in steps:
            self._recycle((*marks, *chain.from_iterable(waits)))
        return measured

    def _measure_step(
        self, samples: int, waits: list[tuple[Any, Any]], begun: Any, computed: Any, ended: Any
    ) -> tuple[int, float, float]:
        waited = sum(self._seconds_between(*each) for each in waits)
        return samples, self._seconds_between(begun, computed) - waited, self._seconds_between(computed, ended) + waited

    def _seconds_between(self, one: Any, other: Any) -> float:
        return float(one.elapsed_time(other)) / 1000 if self._on_gpu else other - one
