"""Rows of the fault matrix in memory: GPUs are never held without ranks, and nothing is lost.

A minimum that spans nodes, and a node that is drained, lost, cut off, or healed; wall clocks that are set. Real scheduler,
views and agents above engines in memory, on one fake clock (``tests/portal/crashes``). ``make test`` plays each story with one
seed, ``make test-all`` with three on each database, ``FAULT_SEEDS=10`` with ten.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from portal.jobs import survival
from portal.jobs.models import ContainerState
from portal.jobs.survival import AnyContainer, SurvivalRule, hosts_of
from tests.examples import HUNT, every_fourth
from tests.portal.crashes import clocks, restored, spanning
from tests.portal.crashes.lab import Lab, Story

SEEDS = range(1, 1 + int(os.environ.get("FAULT_SEEDS", "3" if HUNT else "1")))

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]


def complaints(home: Path, story: Story, seed: int) -> list[str]:
    with Lab(home, story, seed) as lab:
        lab.play()
    return lab.judge.complaints


@pytest.mark.parametrize(
    "story", every_fourth(spanning.STORIES + clocks.STORIES + restored.STORIES), ids=lambda story: story.__name__
)
def test_gpus_are_never_held_without_enough_ranks(tmp_path: Path, story: Story) -> None:
    found = {seed: complaints(tmp_path / str(seed), story, seed) for seed in SEEDS}
    assert {seed: errors for seed, errors in found.items() if errors} == {}


# --- the judge finds what it is to find ------------------------------------------------------------------------------


def first_host_is_enough(rule: SurvivalRule, left: Sequence[AnyContainer]) -> bool:
    """Count hosts instead of GPUs, as ``survival._is_enough`` did once: the first has all that is needed."""
    hosts = hosts_of(left)
    began = any(part.state not in (ContainerState.ASSIGNED, ContainerState.PREPARING) for part in hosts)
    return began and (any(part.index == 1 for part in hosts) or sum(part.slots for part in hosts) >= rule.min_gpus)


@pytest.mark.thorough
@pytest.mark.parametrize("story", [spanning.drained, spanning.cut_off_and_healed])
def test_counting_hosts_instead_of_gpus_is_found(tmp_path: Path, story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survival, "_is_enough", first_host_is_enough)
    found = (text for seed in range(1, 6) for text in complaints(tmp_path / str(seed), story, seed))
    assert any("holds GPUs without enough living ranks" in text for text in found)
