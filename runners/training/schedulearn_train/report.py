"""What a training tells of itself: lines of JSON, into the pipe that ``SCHEDULEARN_METRICS`` names.

A line is one write of at most 4,096 bytes, so lines of several ranks never mix. Nobody waits: when the pipe is full, or
nobody reads it, the line is left out. Without the variable nothing is told.

    {"kind": "step", "at", "step", "epoch", "done", "total", "batch", "ranks", "seconds", "loss", "batches", "noise"}
    {"kind": "ranks", "at", "step", "first", "samples", "computing", "waiting", "expected", "error"}
    {"kind": "metric", "at", "step", "name", "value"}

``at`` is Unix time, ``done`` the part of all work from 0 to 1, ``total`` all work in samples or null, ``seconds`` what a
``batch`` of samples takes: those of a step, unless steps have fewer samples, as with a parameter server. ``batches`` are the
batch that was chosen at first, the least and the most that may be chosen; ``noise`` (null while it is not known) is what
``noise.py`` calls sqr and var. A line of ``ranks`` is of as many as its lists are long, from rank ``first`` on: their samples
of a step, the seconds in which they computed and waited for the others, the seconds of computing that were expected, and the
mean error of such expectations as a part of them.
"""

import atexit
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOST_BYTES = 4096
"""What the kernel writes in one piece."""
RANKS_IN_A_LINE = 32
MOST_POINTS = 1000
"""Between two lines lies this part of the time since the first one."""
LEAST_SECONDS = 0.5
"""Between two lines about steps: a parameter server might tell of each gradient."""
MOST_NAME = 100


@dataclass(frozen=True, slots=True)
class RankReport:
    """Of one rank, the means of its last steps. Seconds."""

    samples: float
    computing: float
    waiting: float
    expected: float
    error: float


class Pace:
    """Every look at first, every hundred seconds after a day: curves have a thousand points soon, and never many more."""

    def __init__(self, least_seconds: float = 0.0) -> None:
        self._began, self._last = time.monotonic(), -math.inf
        self._least_seconds = least_seconds

    def due(self) -> bool:
        now = time.monotonic()
        if now - self._last < max(self._least_seconds, (now - self._began) / MOST_POINTS):
            return False
        self._last = now
        return True


class Metric:
    """A curve's values that are not written yet."""

    __slots__ = ("count", "pace", "step", "total")

    def __init__(self) -> None:
        self.pace = Pace()
        self.total, self.count, self.step = 0.0, 0, 0

    def add(self, value: float, step: int) -> None:
        self.total, self.count, self.step = self.total + value, self.count + 1, step

    def take(self) -> tuple[int, float]:
        """The step of the last value, and the mean."""
        taken = self.step, self.total / self.count
        self.total, self.count = 0.0, 0
        return taken


class Reporter:
    def __init__(self, path: str | None = None) -> None:
        self._path = path or os.environ.get("SCHEDULEARN_METRICS") or ""
        self._handle: int | None = None
        self._steps = Pace(LEAST_SECONDS)
        self._metrics: dict[str, Metric] = {}
        self._step = 0

    def reached(self, step: int) -> None:
        """Where the training is: the step of values that come without one."""
        self._step = step

    def due(self, last: bool = False) -> bool:
        """Whether it is time to tell of steps again, as it always is for the ``last`` one. Who asks tells."""
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
        self._tell("step", {**facts, "loss": loss, "batches": batches, "noise": noise})

    def ranks(self, of: Sequence[RankReport]) -> None:
        for first in range(0, len(of), RANKS_IN_A_LINE):
            some = of[first : first + RANKS_IN_A_LINE]
            lists = {name: [getattr(one, name) for one in some] for name in RankReport.__slots__}
            self._tell("ranks", {"first": first, **lists})

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Of values that come faster than a curve has points, writes the mean, at the step of the last."""
        self._step = self._step if step is None else step
        metric = self._metrics.setdefault(name, Metric())
        metric.add(float(value), self._step)
        if metric.pace.due():
            self._write_metric(name, metric)

    def flush(self) -> None:
        """Writes the values that were kept."""
        for name, metric in self._metrics.items():
            if metric.count:
                self._write_metric(name, metric)

    def _write_metric(self, name: str, metric: Metric) -> None:
        step, value = metric.take()
        self._tell("metric", {"name": name[:MOST_NAME], "value": value, "step": step})

    def _tell(self, kind: str, facts: dict[str, Any]) -> None:
        if not self._path:
            return
        whole = {"kind": kind, "at": round(time.time(), 3), "step": self._step, **_rounded(facts)}
        line = json.dumps(whole, separators=(",", ":")).encode() + b"\n"
        if len(line) > MOST_BYTES:
            return
        try:
            if self._handle is None:
                self._handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(self._handle, line)
        except OSError:
            pass  # nobody reads, or not fast enough


def _rounded(value: Any) -> Any:
    """Six digits are enough for a curve; what is no number is null, the word that JSON has for it."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return value


_own: Reporter | None = None


def reporter() -> Reporter:
    """This process's. Values that were kept are written when it ends."""
    global _own
    if _own is None:
        _own = Reporter()
        atexit.register(_own.flush)
    return _own


def log_metric(name: str, value: float, step: int | None = None) -> None:
    """A curve on the job's page. ``step`` is only needed in a loop without ``Run``."""
    reporter().metric(name, value, step)
