"""What a portal would have learnt of an application by now: from the steps its jobs have made in this simulation.

One ``Lessons`` belongs to one application in one simulation: start the next one with new ones, or it knows the future.
"""

from collections.abc import Callable

from scheduling.toolkit import performance
from scheduling.toolkit.performance import Batches, Measurement, Model, Stats
from scheduling.types import Curve

MAX_EPOCHS = 512


class Lessons:
    """Steps of equal kind (nodes, GPUs, samples, passes) take equally long, so each kind is written down once."""

    def __init__(self, node_gpus: int) -> None:
        self.node_gpus = node_gpus
        self.steps: dict[tuple[int, int, int, int], Measurement] = {}
        self._model: Model | None = None
        self._fitted = 0
        self._curves: dict[tuple[object, ...], Curve] = {}

    def note(self, nodes: int, gpus: int, local: int, extra: int, measure: Callable[[], tuple[float, float]]) -> None:
        """``measure`` tells how long a step took, and how long it waited for others in it."""
        key = (nodes, gpus, local, extra)
        if key not in self.steps:
            step, sync = measure()
            self.steps[key] = Measurement(nodes, gpus, local, step, extra, sync)

    @property
    def model(self) -> Model | None:
        """Fitted anew whenever a kind of step was seen for the first time."""
        if self._fitted != len(self.steps):
            self._model = performance.fit(list(self.steps.values()), before=self._model)
            self._fitted = len(self.steps)
            self._curves.clear()
        return self._model

    def curve(self, batches: Batches, maximum: int, stats: Stats | None = None) -> Curve | None:
        """With the asked batch; with ``stats`` with the best one. None before the first step."""
        model = self.model
        if model is None:
            return None
        key = (batches, maximum, stats)
        if key not in self._curves:
            if len(self._curves) > MAX_EPOCHS:
                self._curves.clear()
            self._curves[key] = performance.curve(model, batches, maximum, self.node_gpus, stats=stats)
        return self._curves[key]
