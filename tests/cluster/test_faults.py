"""A short selection of the fault matrix: every kind of fault once, one after the other, on a lab that is kept busy.

All of it: ``make test-faults``. ``FAULT_SEED=17`` draws other moments.
"""

import os
from collections.abc import Iterator

import pytest

from tests.cluster.faults import FAULTS
from tests.cluster.matrix import Stage, carry_out, in_turn, stage

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(1200)]
SEED = int(os.environ.get("FAULT_SEED", "1"))
MACHINES = 3


@pytest.fixture(scope="module")
def on() -> Iterator[Stage]:
    with stage(MACHINES) as made:
        yield made


@pytest.mark.parametrize("calm", [True, False], ids=["nothing is run again", "what was lost is run again"])
def test_faults_lose_nothing_and_double_nothing(on: Stage, calm: bool) -> None:
    fault = in_turn([each for each in FAULTS if each.short and each.rules.calm == calm])
    row = carry_out(on, fault, SEED, fault.times)
    assert row.jobs > fault.times, "the lab was not busy"
    print(row.text())
    assert not row.complaints, f"seed {SEED}, starved for {row.starved:.1f} s: {row.complaints}"
