"""FfDL's bursts: the same jobs, whether their batch may be chosen or not."""

from statistics import fmean

import pytest

from scheduling import registry
from scheduling.simulate import compare, simulate
from scheduling.simulate.loads import MEMORY, bursts


@pytest.mark.parametrize("batch", ["least", "drawn", "most"])
def test_the_same_jobs_come_with_every_batch(batch: str) -> None:
    free, fixed = bursts(waves=1, jobs=8), bursts(batch=batch, waves=1, jobs=8)  # type: ignore[arg-type]
    for ours, theirs in zip(free, fixed, strict=True):
        assert (ours.job.id, ours.job.submitted_at, ours.truth.work) == (  # type: ignore[attr-defined]
            theirs.job.id, theirs.job.submitted_at, theirs.truth.work)  # type: ignore[attr-defined]  # fmt: skip
        assert theirs.job.batch <= theirs.job.min_gpus * MEMORY
        for gpus in range(1, 9):
            assert ours.truth.curve.speeds[gpus - 1] >= theirs.truth.curve.speeds[gpus - 1] * 0.97  # type: ignore[attr-defined]


def test_choosing_the_batch_ends_jobs_sooner_than_the_same_program_with_any_fixed_one() -> None:
    def mean(batch: str) -> float:
        """Over five draws: in one of them a fixed batch may come out by chance."""
        policy = registry.build("ffdl", {"batch": "chosen" if batch == "chosen" else "asked"})
        draws = [bursts(batch=batch, waves=2, jobs=12, minutes=60, seed=seed) for seed in range(5)]  # type: ignore[arg-type]
        return fmean(simulate(policy, compare.parse_cluster("2x4"), jobs).summary().turnaround.mean for jobs in draws)

    assert mean("chosen") < 0.9 * min(mean("least"), mean("drawn"), mean("most"))
