"""The reports of a training, which never wait for a reader."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runners.training.schedulearn_train import report
from runners.training.schedulearn_train.report import MAX_LINE_BYTES, RANKS_PER_LINE, RankReport, Reporter

SPEED_FIELDS = {
    "epoch": 0,
    "done": 0.25,
    "total": 12800,
    "batch": 64,
    "ranks": 2,
    "seconds": 0.5,
    "loss": 1.5,
    "batches": [64, 32, 512],
    "noise": [0.5, 80.0],
}


class Pipe:
    """The supervisor's end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self.handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def lines(self) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in os.read(self.handle, 1 << 20).splitlines()]
        except BlockingIOError:
            return []


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    made = Pipe(tmp_path / "metrics")
    yield made
    os.close(made.handle)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [1000.0]
    monkeypatch.setattr(report.time, "monotonic", lambda: now[0])
    yield now


def test_steps_ranks_and_metrics_are_lines_of_json(pipe: Pipe) -> None:
    reporter = Reporter(str(pipe.path))
    reporter.step(step=7, **SPEED_FIELDS)  # type: ignore[arg-type]
    reporter.ranks([RankReport(30.0, 0.1, 0.05, 0.11, 0.02), RankReport(34.0, 0.2, 0.0, 0.19, 0.01)])
    reporter.metric("accuracy", 0.5)
    step, ranks, metric = pipe.lines()
    assert step.pop("at") > 1e9
    assert step == {"kind": "step", "step": 7, **SPEED_FIELDS}
    assert (ranks["first"], ranks["computing"], ranks["expected"]) == (0, [0.1, 0.2], [0.11, 0.19])
    assert (metric["kind"], metric["step"], metric["name"], metric["value"]) == ("metric", 7, "accuracy", 0.5)


def test_what_is_no_number_is_null(pipe: Pipe) -> None:
    Reporter(str(pipe.path)).step(step=1, **{**SPEED_FIELDS, "loss": math.nan, "done": None})  # type: ignore[arg-type]
    (line,) = pipe.lines()
    assert line["loss"] is None and line["done"] is None


def test_many_ranks_take_several_lines_each_written_in_one_piece(pipe: Pipe) -> None:
    Reporter(str(pipe.path)).ranks([RankReport(123.456, 0.123456, 0.123456, 0.123456, 0.123456)] * 100)
    lines = pipe.lines()
    assert [line["first"] for line in lines] == list(range(0, 100, RANKS_PER_LINE))
    assert sum(len(line["waiting"]) for line in lines) == 100
    assert max(len(json.dumps(line)) for line in lines) < MAX_LINE_BYTES


def test_of_metrics_that_come_fast_the_mean_is_written(pipe: Pipe, clock: list[float]) -> None:
    reporter = Reporter(str(pipe.path))
    reporter.metric("loss", 9.0, step=1)
    clock[0] += 10_000
    reporter.metric("loss", 8.0, step=2)
    for value in (1.0, 2.0, 6.0):
        reporter.metric("loss", value, step=3)
    clock[0] += 10_000
    reporter.metric("loss", 3.0, step=4)
    assert [(line["step"], line["value"]) for line in pipe.lines()] == [(1, 9.0), (2, 8.0), (4, 3.0)]


def test_each_metric_has_its_own_points_however_many_are_logged_together(pipe: Pipe, clock: list[float]) -> None:
    reporter = Reporter(str(pipe.path))
    for epoch in range(1, 6):
        reporter.metric("train/loss", 1 / epoch, step=epoch)
        reporter.metric("validation/accuracy", epoch / 10, step=epoch)
        clock[0] += 0.5
    points = [(line["step"], line["value"]) for line in pipe.lines() if line["name"] == "validation/accuracy"]
    assert points == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4), (5, 0.5)]


def test_a_value_without_a_step_is_at_the_step_that_was_reached(pipe: Pipe) -> None:
    reporter = Reporter(str(pipe.path))
    reporter.step(step=7, **SPEED_FIELDS)  # type: ignore[arg-type]
    reporter.reached(12)
    reporter.metric("accuracy", 0.5)
    assert pipe.lines()[-1]["step"] == 12


def test_the_last_values_are_written_when_a_program_ends(pipe: Pipe) -> None:
    program = """
from runners.training.schedulearn_train import log_metric, report
report.MAX_POINTS = 1e-9
for step in range(1, 6):
    log_metric("loss", 10 * step, step=step)
"""
    root = Path(report.__file__).parents[3]
    env = {"SCHEDULEARN_METRICS": str(pipe.path), "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-c", program], cwd=root, env=env, check=True)  # noqa: S603
    assert [(line["step"], line["value"]) for line in pipe.lines()] == [(1, 10), (5, 35)]


def test_an_older_training_reports_more_rarely(pipe: Pipe, clock: list[float]) -> None:
    reporter, due = Reporter(str(pipe.path)), 0
    for _ in range(20_000):
        due += reporter.due()
        clock[0] += 1
    assert 3_000 < due < 4_500  # a thousand in the first thousand seconds, then a thousand for each e times as many


def test_steps_are_reported_at_most_twice_a_second_except_the_last(pipe: Pipe, clock: list[float]) -> None:
    reporter = Reporter(str(pipe.path))
    assert reporter.due()
    clock[0] += 0.4
    assert not reporter.due() and reporter.due(last=True)
    clock[0] += 0.2
    assert reporter.due()


def test_a_missing_reader_is_no_reason_to_wait_or_to_fail(tmp_path: Path, pipe: Pipe) -> None:
    for path in ("", str(tmp_path / "absent")):
        Reporter(path).step(step=1, **SPEED_FIELDS)  # type: ignore[arg-type]
    unread = Reporter(str(pipe.path))
    for step in range(10_000):  # far more than a pipe holds
        unread.step(step=step, **SPEED_FIELDS)  # type: ignore[arg-type]
    assert [line["step"] for line in pipe.lines()][:3] == [0, 1, 2]
    os.close(os.open(pipe.path, os.O_RDONLY | os.O_NONBLOCK))


def test_a_line_that_would_be_torn_is_left_out(pipe: Pipe) -> None:
    reporter = Reporter(str(pipe.path))
    reporter.metric("x" * 5000, 1.0)
    assert [len(line["name"]) for line in pipe.lines()] == [100]
