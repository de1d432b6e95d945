"""What the portal would have learnt about an application so far from the steps of its jobs in this simulation.

A ``SpeedLearner`` belongs to one application in one simulation: the next simulation needs a new one, or it knows the
future.
"""

from collections.abc import Callable

from scheduling.toolkit import performance
from scheduling.toolkit.performance import Batches, Measurement, Model, Stats
from scheduling.types import Curve

MAX_EPOCHS = 512


class SpeedLearner:
    """Steps by kind (nodes, GPUs, samples, passes). Those of a kind take equally long, so each is recorded once."""

    def __init__(self, node_gpus: int) -> None:
        self.node_gpus = node_gpus
        self.steps: dict[tuple[int, int, int, int], Measurement] = {}
        self._model: Model | None = None
        self._fitted = 0
        self._curves: dict[tuple[object, ...], Curve] = {}

    def record_step(
        self, nodes: int, gpus: int, local: int, extra: int, measure: Callable[[], tuple[float, float]]
    ) -> None:
        """Record a kind of step. ``measure`` returns the duration of the step, and of the wait for others in it."""
        key = (nodes, gpus, local, extra)
        if key not in self.steps:
            step, sync = measure()
            self.steps[key] = Measurement(nodes, gpus, local, step, extra, sync)

    @property
    def model(self) -> Model | None:
        """The model, fitted again whenever there is a new kind of step."""
        if self._fitted != len(self.steps):
            self._model = performance.fit(list(self.steps.values()), before=self._model)
            self._fitted = len(self.steps)
            self._curves.clear()
        return self._model

    def curve(self, batches: Batches, maximum: int, stats: Stats | None = None) -> Curve | None:
        """Return the curve with the batch size asked for, or with ``stats`` the best one. None before the first step."""
        model = self.model
        if model is None:
            return None
        key = (batches, maximum, stats)
        if key not in self._curves:
            if len(self._curves) > MAX_EPOCHS:
                self._curves.clear()
            self._curves[key] = performance.curve(model, batches, maximum, self.node_gpus, stats=stats)
        return self._curves[key]
