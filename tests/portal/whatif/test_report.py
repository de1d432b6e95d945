"""The words of a comparison's report."""

from typing import Any

from portal.whatif.report import Column, comparison_rows


def figures(fairness: float) -> dict[str, Any]:
    spread = {"mean": 60.0, "p50": 50.0, "p95": 90.0}
    total = {"turnaround": spread, "waiting": spread, "utilisation": 0.5, "lost_gpu_hours": 0.0, "preemptions": 0}
    return {"total": {**total, "fairness": {**spread, "mean": fairness}, "unfair": 0.0}}


def cells(*means: float) -> list[tuple[str, str]]:
    """The line of finish-time fairness, of a policy in force and others."""
    worlds = [Column(f"policy {place}", figures(mean), in_force=place == 0) for place, mean in enumerate(means)]
    [line] = [line for line in comparison_rows(worlds) if line.name.startswith("mean (1 is a fair share)")]
    return [(cell.text, cell.change) for cell in line.cells]


def test_jobs_too_short_to_have_a_fairness_leave_its_cell_empty() -> None:
    assert cells(0.0, 0.0) == [("–", ""), ("–", "")]
    assert cells(0.0, 1.5) == [("–", ""), ("1.5", "")]
    assert cells(1.5, 0.0) == [("1.5", ""), ("–", "")]


def test_a_fairness_is_compared_with_that_of_the_policy_in_force() -> None:
    [(first, unchanged), (second, change)] = cells(1.0, 2.0)
    assert (first, unchanged, second) == ("1", "", "2") and change
