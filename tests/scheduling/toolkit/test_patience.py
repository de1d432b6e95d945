"""No job waits for ever: the bound that holds under every policy."""

from dataclasses import replace

import pytest

from scheduling import registry
from scheduling.decide import decide
from scheduling.policies.fifo import Fifo
from scheduling.simulate import Options, Submission, lasts, simulate
from scheduling.types import Job, Node, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.worlds import NOW, draw, running, sizes, waiting

HOUR = 3600.0
PATIENCE = HOUR
LONGEST = 600.0
FIFO = Fifo(strict=False)
KEYS = [pytest.param(key, marks=pytest.mark.thorough) if key == "ones" else key for key in registry.POLICIES]
"""``ones`` searches at each turn, so a simulation of it takes a hundred times as long as one of the others."""


def late(snapshot: Snapshot, patience: float = 100.0) -> Snapshot:
    return replace(snapshot, patience_seconds=patience)


def test_what_comes_free_is_kept_for_whoever_waited_longest() -> None:
    lab = draw({"a": 4}, running("1", {"a": 2}), waiting("2", 4), waiting("3", 1, submitted_at=NOW - 5))
    assert sizes(FIFO.plan(lab)) == {"1": 2, "3": 1}
    done = decide(FIFO, late(lab))
    assert sizes(done) == {"1": 2}
    assert (
        reasons_of(done)["2"]
        == "It has waited for more than 100 seconds, so it is next: GPUs are kept for it as they come free."
    )


def test_jobs_that_can_stop_make_room_for_it() -> None:
    lab = draw({"a": 4}, running("1", {"a": 4}, preemptible=True, submitted_at=NOW - 9), waiting("2", 4))
    assert sizes(decide(FIFO, late(lab))) == {}


def test_premium_jobs_are_not_stopped_for_it() -> None:
    premium = running("1", {"a": 4}, preemptible=True, tier="premium")
    assert sizes(decide(FIFO, late(draw({"a": 4}, premium, waiting("2", 4))))) == {"1": 4}


def test_it_is_not_stopped_again_at_once() -> None:
    srjf = registry.build("srjf", {})
    kept = running("1", {"a": 4}, preemptible=True, started_at=NOW - 50)
    lab = draw({"a": 4}, kept, waiting("2", 4, tier="premium", submitted_at=NOW - 5))
    assert sizes(decide(srjf, lab)) == {}
    assert sizes(decide(srjf, late(lab))) == {"1": 4}


def test_a_job_that_could_not_start_anyway_does_not_hold_up_others() -> None:
    lab = draw({"a": 4}, running("1", {"a": 3}), waiting("2", 9), waiting("3", 1, submitted_at=NOW - 5))
    assert sizes(decide(FIFO, late(lab))) == {"1": 3, "3": 1}


@pytest.mark.parametrize("kind", ["large", "long", "machine"])
@pytest.mark.parametrize("can_stop", [True, False])
@pytest.mark.parametrize("key", KEYS)
def test_laws_of_patience_every_job_starts_within_the_bound(key: str, can_stop: bool, kind: str) -> None:
    """In a lab with more small jobs than it can run, for ever; ``machine``: its GPUs are of two kinds, and a job needs all."""
    gpus, seconds = (1, 6 * HOUR) if kind == "long" else (4, HOUR)
    nodes = [Node("a", "a", 4, 4)]
    if kind == "machine":
        nodes = [Node("a", "a", 2, 2, kind="T4", part_of="m"), Node("b", "b", 2, 2, kind="A100", part_of="m")]
    stream = [
        Submission(
            Job(f"s{number:04}", f"user{number % 5}", 125.0 * number, 1, 1, preemptible=can_stop), lasts(LONGEST, 1)
        )
        for number in range(75)
    ]
    large = Job("whale", "alice", 1800.0, gpus, gpus, preemptible=can_stop, spread=kind != "machine")
    whale = Submission(large, lasts(seconds, gpus))
    result = simulate(
        registry.build(key, {}),
        nodes,
        [*stream, whale],
        now=0.0,
        options=Options(until=2.5 * HOUR, release_seconds=10, patience_seconds=PATIENCE),
    )
    started = next(job.first_started_at for job in result.jobs if job.id == "whale")
    assert started is not None
    assert started - 1800.0 <= PATIENCE + LONGEST + 2 * 300
