"""Policies that share GPUs out in counts, where the counts do not fit on the nodes."""

import pytest

from scheduling import registry
from tests.scheduling.worlds import draw, running, sizes, waiting


@pytest.mark.parametrize("key", ["afs", "themis"])
def test_gpus_of_two_jobs_that_find_no_place_go_to_the_third(key: str) -> None:
    """Four are free in all, two on each node: only a job of several nodes can start on them."""
    lab = draw(
        {"a": 5, "b": 5},
        *(running(node, {node: 3}) for node in "ab"),
        waiting("1", 3, spread=False),
        waiting("2", 4, spread=False),
        waiting("3", 3, 6, elastic=True),
    )
    assert sizes(registry.build(key, {}).plan(lab)) == {"a": 3, "b": 3, "3": 4}
