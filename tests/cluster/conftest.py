"""Machines for one module's tests at a time."""

from collections.abc import Iterator

import pytest

from tests.cluster.machines import Lan, cluster


@pytest.fixture(scope="module")
def lan() -> Iterator[Lan]:
    with cluster(2) as machines:
        yield machines
