"""Reports of a training: lines of JSON, written into the pipe that ``SCHEDULEARN_METRICS`` names.

A line is one write of at most 4,096 bytes, so lines of several ranks never mix. Writing never waits: when the pipe is full
or has no reader, the line is dropped. Without the variable nothing is written.

    {"kind": "step", "at", "step", "epoch", "done", "total", "batch", "ranks", "seconds", "loss", "batches", "noise"}
    {"kind": "ranks", "at", "step", "first", "samples", "computing", "waiting", "expected", "error"}
    {"kind": "metric", "at", "step", "name", "value"}

``at`` is Unix time, ``done`` the completed fraction of all work, ``total`` all work in samples or null, and ``seconds`` the
time that a ``batch`` of samples takes: the time of a step, unless steps have fewer samples, as with a parameter server.
``batches`` are the original batch size and the smallest and the largest that may be chosen; ``noise`` (null while unknown)
has the values that ``noise.py`` calls sqr and var. A line of ``ranks`` describes consecutive ranks, starting with rank
``first``: the samples of a step, the seconds of computing and of waiting for the others, the predicted seconds of computing,
and the mean relative error of such predictions.
"""

import atexit
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_LINE_BYTES = 4096
"""The kernel writes so many bytes in one piece."""
RANKS_PER_LINE = 32
MAX_POINTS = 1000
"""The pause between two lines is the time since the first line divided by this number."""
MIN_SECONDS = 0.5
"""The shortest pause between two lines about steps: a parameter server might report each gradient."""
MAX_NAME_LENGTH = 100


@dataclass(frozen=True, slots=True)
class RankReport:
    """Means over the last steps of one rank. Times are in seconds, ``error`` is relative."""

    samples: float
    computing: float
    waiting: float
    expected: float
    error: float


class Pace:
    """Spaces the points of a curve: one per second at first, one per hundred seconds after a day, never many thousands."""

    def __init__(self, min_seconds: float = 0.0) -> None:
        self._began, self._last = time.monotonic(), -math.inf
        self._min_seconds = min_seconds

    def due(self) -> bool:
        now = time.monotonic()
        if now - self._last < max(self._min_seconds, (now - self._began) / MAX_POINTS):
            return False
        self._last = now
        return True


class Metric:
    """The values of a curve that are not written yet."""

    __slots__ = ("count", "pace", "step", "total")

    def __init__(self) -> None:
        self.pace = Pace()
        self.total, self.count, self.step = 0.0, 0, 0

    def add(self, value: float, step: int) -> None:
        self.total, self.count, self.step = self.total + value, self.count + 1, step

    def take(self) -> tuple[int, float]:
        """Return the step of the last value and the mean of all, and start again."""
        taken = self.step, self.total / self.count
        self.total, self.count = 0.0, 0
        return taken


class Reporter:
    """Writes the lines of one process."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path or os.environ.get("SCHEDULEARN_METRICS") or ""
        self._handle: int | None = None
        self._steps = Pace(MIN_SECONDS)
        self._metrics: dict[str, Metric] = {}
        self._step = 0

    def reached(self, step: int) -> None:
        """Set the step of values that are logged without one."""
        self._step = step

    def due(self, last: bool = False) -> bool:
        """Return whether to report steps again, which is always so for the ``last`` one. The caller must report if so."""
        return self._steps.due() or last

    def step(
        self,
        *,
        step: int,
        epoch: int,
        done: float | None,
        batch: int,
        ranks: int,
        seconds: float,
        loss: float,
        batches: tuple[int, int, int],
        total: int | None = None,
        noise: tuple[float, float] | None = None,
    ) -> None:
        self._step = step
        facts = {"epoch": epoch, "done": done, "total": total, "batch": batch, "ranks": ranks, "seconds": seconds}
        self._write("step", {**facts, "loss": loss, "batches": batches, "noise": noise})

    def ranks(self, reports: Sequence[RankReport]) -> None:
        for first in range(0, len(reports), RANKS_PER_LINE):
            some = reports[first : first + RANKS_PER_LINE]
            lists = {name: [getattr(one, name) for one in some] for name in RankReport.__slots__}
            self._write("ranks", {"first": first, **lists})

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Add a value to a curve. Of values that come faster than points, the mean is written, at the step of the last."""
        self._step = self._step if step is None else step
        metric = self._metrics.setdefault(name, Metric())
        metric.add(float(value), self._step)
        if metric.pace.due():
            self._write_metric(name, metric)

    def flush(self) -> None:
        """Write the values that are not written yet."""
        for name, metric in self._metrics.items():
            if metric.count:
                self._write_metric(name, metric)

    def _write_metric(self, name: str, metric: Metric) -> None:
        step, value = metric.take()
        self._write("metric", {"name": name[:MAX_NAME_LENGTH], "value": value, "step": step})

    def _write(self, kind: str, facts: dict[str, Any]) -> None:
        if not self._path:
            return
        whole = {"kind": kind, "at": round(time.time(), 3), "step": self._step, **_rounded(facts)}
        line = json.dumps(whole, separators=(",", ":")).encode() + b"\n"
        if len(line) > MAX_LINE_BYTES:
            return
        try:
            if self._handle is None:
                self._handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(self._handle, line)
        except OSError:
            pass  # no process reads the pipe, or not fast enough


def _rounded(value: Any) -> Any:
    """Round to six digits, which are enough for a curve, and replace NaN and infinity by null, as JSON has neither."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return value


_own: Reporter | None = None


def reporter() -> Reporter:
    """Return the reporter of this process, which writes its last values when the process ends."""
    global _own
    if _own is None:
        _own = Reporter()
        atexit.register(_own.flush)
    return _own


def log_metric(name: str, value: float, step: int | None = None) -> None:
    """Add a value to a curve on the job's page. ``step`` is only needed in a loop without ``Run``.

    >>> from schedulearn_train import log_metric
    >>> log_metric("validation/accuracy", 0.97, step=120)
    """
    reporter().metric(name, value, step)
