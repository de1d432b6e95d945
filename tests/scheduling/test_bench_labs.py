"""The labs that decisions are timed on are sound, and every policy decides about them without breaking a rule."""

import pytest

from scheduling import registry
from tests.bench.decisions import OPTIONS, lab, median_ms

CASES = [(key, given) for key in registry.POLICIES for given in [{}, *OPTIONS.get(key, [])]]


@pytest.mark.parametrize("full", [True, False])
def test_what_is_free_and_what_jobs_hold_add_up(full: bool) -> None:
    snapshot = lab(100, 64, full=full)
    held = dict.fromkeys((node.id for node in snapshot.nodes), 0)
    for job in snapshot.jobs:
        for node, gpus in job.now_on.items():
            held[node] += gpus
    assert all(node.free == node.total - held[node.id] for node in snapshot.nodes)
    free = sum(node.free for node in snapshot.nodes)
    assert free <= 4 and any(job.waiting for job in snapshot.jobs) if full else free >= 30


@pytest.mark.parametrize(("key", "given"), CASES, ids=str)
def test_every_policy_decides_about_them(key: str, given: dict[str, object]) -> None:
    for full in (True, False):
        assert median_ms(key, given, lab(100, 64, full=full), repeats=1) > 0
