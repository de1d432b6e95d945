"""Differences from a baseline: percentages only where they mean something."""

from typing import Any

import pytest

from portal import charts, percentages
from portal.whatif import report


@pytest.mark.parametrize(
    ("value", "base", "unit", "expected"),
    [
        (5400.0, 3600.0, charts.SECONDS, "+50 %"),
        (1800.0, 3600.0, charts.SECONDS, "−50 %"),
        (3600.0, 3610.0, charts.SECONDS, "the same"),
        (0.18, 0.3, charts.SECONDS, "the same"),  # both are 0 s
        (0.0, 0.0, charts.SECONDS, "the same"),
        (720.0, 0.2, charts.SECONDS, "+12 min"),
        (3.0, 45.0, charts.SECONDS, "−42 s"),
        (10.0, 4200.0, charts.SECONDS, "−99 %"),  # above zero, so not all of it is gone
        (0.0, 4200.0, charts.SECONDS, "−100 %"),
        (3.0, 1.0, "", "+2"),
        (30.0, 20.0, "", "+50 %"),
        (4.0, 0.5, "%", "+4 points"),
        (0.75, 0.25, "GPU-hours", "+0.5 GPU-hours"),
        (1234.0 * 60, 60.0, charts.SECONDS, "+123,300 %"),
    ],
)
def test_a_difference_is_a_percentage_where_the_baseline_is_not_next_to_nothing(
    value: float, base: float, unit: str, expected: str
) -> None:
    assert percentages.difference(value, base, unit, min_base=percentages.MIN_BASE[unit]) == expected


def figures(waiting: float, preemptions: int = 0, fairness: float = 1.0) -> dict[str, Any]:
    spread = {"mean": waiting, "p50": waiting, "p95": waiting}
    rest = {"utilisation": 0.2, "lost_gpu_hours": 0.0, "preemptions": preemptions, "unfair": 0.0}
    return {"turnaround": spread, "waiting": spread, "fairness": {"mean": fairness}, **rest}


def cells(base: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return what the page shows of the other policy, by measure."""
    worlds = [
        report.Column("in force", {"total": base}, in_force=True),
        report.Column("other", {"total": other}),
    ]
    return {line.name: (line.cells[1].change, line.cells[1].look) for line in report.comparison_rows(worlds)}


def test_a_lab_without_waiting_jobs_gets_no_percentages() -> None:
    found = cells(figures(0.3), figures(0.18))
    assert found["median"] == ("the same", "")
    assert not any("%" in text for text, _ in found.values())


def test_waiting_that_comes_out_of_nothing_is_worse_by_its_length() -> None:
    assert cells(figures(0.0), figures(900.0))["median"] == ("+15 min", "bad")


def test_a_few_preemptions_are_counted_and_many_compared() -> None:
    assert cells(figures(0.0, 2), figures(0.0, 3))["preemptions"] == ("+1", "")
    assert cells(figures(0.0, 40), figures(0.0, 60))["preemptions"] == ("+50 %", "bad")


def test_fairness_is_a_ratio_and_keeps_its_percentage() -> None:
    assert cells(figures(0.0, fairness=1.2), figures(0.0, fairness=1.8))["mean (1 is a fair share)"] == ("+50 %", "bad")
