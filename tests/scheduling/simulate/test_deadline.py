"""A day before a deadline, a short one: under the default policy neither short nor large jobs are shut out."""

import statistics
from typing import Any

import pytest

from scheduling import registry
from scheduling.simulate import Options, accounts_of, compare, simulate
from scheduling.simulate.loads import deadline_day

DAY: dict[str, Any] = {"short": 240, "large": 15, "hours": 3.0}


def test_equal_seeds_draw_equal_days() -> None:
    day = deadline_day(**DAY, seed=3)
    assert day == deadline_day(**DAY, seed=3) != deadline_day(**DAY, seed=4)
    large = [each.job for each in day if each.job.id.startswith("large")]
    assert len(day) == 255 and len(large) == 15
    assert {job.owner for job in large}.isdisjoint(each.job.owner for each in day if each.job not in large)
    assert all(job.preemptible and job.elastic and (job.min_gpus, job.max_gpus) == (8, 32) for job in large)


def waits(key: str, kind: str, **day: Any) -> list[float]:
    jobs = deadline_day(**DAY, elastic=False, seed=1, **day)
    result = simulate(
        registry.build(key, {}), compare.parse_cluster("16x4"), jobs, accounts=accounts_of(jobs), options=Options()
    )
    assert all(job.outcome == "ended" for job in result.jobs)
    return [job.waiting for job in result.jobs if job.id.startswith(kind) and job.waiting is not None]


@pytest.mark.parametrize("trainers", [5, 0], ids=["a few train", "everyone trains"])
def test_under_the_default_short_jobs_start_within_a_minute(trainers: int) -> None:
    assert statistics.median(waits(registry.DEFAULT, "short", trainers=trainers)) < 60
    assert statistics.median(waits("elastic_fifo", "short", trainers=trainers)) > 600


def test_under_the_default_large_jobs_start_too() -> None:
    """Their work alone takes the lab some nine hours."""
    assert max(waits(registry.DEFAULT, "large")) < 9 * 3600
