"""How long a rank computed, apart from what it waited for the others. On GPUs by events, which cost nothing at the time."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch


class StepClock:
    """For each step: ``begin`` when its data is there, ``more`` in each pass, ``computed`` when its gradients are there,
    ``end`` after the update."""

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._marks: list[Any] = []
        self._elsewhere: list[tuple[Any, Any]] = []
        self._samples = 0
        self._steps: list[tuple[int, list[tuple[Any, Any]], Any, Any, Any]] = []
        self._events: list[Any] = []
        """Made, and free again: to make and to end one takes the driver several microseconds."""

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = self._events.pop() if self._events else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _free(self, marks: Iterable[Any]) -> None:
        if self._on_gpu:
            self._events += marks

    def begin(self) -> None:
        self._marks, self._elsewhere, self._samples = [self._now()], [], 0

    def more(self, samples: int) -> None:
        self._samples += samples

    def computed(self) -> None:
        """The last call of a step counts: buckets of gradients become ready one after the other."""
        self._free(self._marks[1:])
        del self._marks[1:]
        self._marks.append(self._now())

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """In the midst of computing: it waits for the others."""
        began = self._now()
        yield
        self._elsewhere.append((began, self._now()))

    def backward_done(self) -> None:
        """They are there now at the latest."""
        if len(self._marks) == 1:
            self.computed()

    def end(self) -> None:
        if len(self._marks) == 2:
            self._steps.append((self._samples, self._elsewhere, *self._marks, self._now()))
        self._marks = []

    def read(self) -> list[tuple[int, float, float]]:
        """Of the steps since the last reading: samples, seconds of computing, seconds of waiting and updating."""
        steps, self._steps = self._steps, []
        if self._on_gpu and steps:
            torch.cuda.synchronize()
        told = [self._told(*step) for step in steps]
        for _, elsewhere, *marks in steps:
            self._free((*marks, *chain.from_iterable(elsewhere)))
        return told

    def _told(self, samples: int, elsewhere: list[tuple[Any, Any]], a: Any, b: Any, c: Any) -> tuple[int, float, float]:
        waited = sum(self._between(*each) for each in elsewhere)
        return samples, self._between(a, b) - waited, self._between(b, c) + waited

    def _between(self, one: Any, other: Any) -> float:
        return float(one.elapsed_time(other)) / 1000 if self._on_gpu else other - one
