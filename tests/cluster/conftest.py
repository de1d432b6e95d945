"""Machines for one module's tests at a time; of rings for two modules'."""

from collections.abc import Iterator

import pytest

from tests.cluster.lab import Lab
from tests.cluster.machines import Lan, cluster
from tests.cluster.ring_run import two_machines


@pytest.fixture(scope="module")
def lan() -> Iterator[Lan]:
    with cluster(2) as machines:
        yield machines


@pytest.fixture(scope="session")
def ring_lab() -> Iterator[Lab]:
    with two_machines() as made:
        yield made
