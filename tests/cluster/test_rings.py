"""Horovod over several machines: it grows, shrinks, loses its first node, and does every step once."""

import pytest

from tests.cluster.lab import Lab
from tests.cluster.ring_run import START_SECONDS, Run
from tests.system.product import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def test_a_ring_grows_over_two_machines_and_leaves_the_first_without_losing_a_step(ring_lab: Lab) -> None:
    Run(ring_lab, "horovod", 3).grows_to_three_and_leaves_the_first_machine()


@pytest.mark.thorough
def test_a_ring_that_is_wholly_on_a_drained_machine_moves_to_the_other_without_losing_a_step(ring_lab: Lab) -> None:
    """It has all the GPUs it may have: for a moment it has twice as many."""
    run = Run(ring_lab, "horovod", 1)
    run.sees("of 1 ranks", 3)
    run.cancel(run.filler)
    run.node(run.other, "resume")
    run.node(run.first, "drain")
    wait_for("another driver", lambda: run.events("driver"), START_SECONDS)
    run.sees("of 1 ranks", run.last())
    run.finish()
    assert run.did_every_step_once()
    assert run.events("moving") == 1 and run.events("stopping") == 0


def test_a_ring_survives_that_its_first_machine_loses_its_power(ring_lab: Lab) -> None:
    Run(ring_lab, "horovod", 3).survives_that_the_first_machine_loses_its_power()
