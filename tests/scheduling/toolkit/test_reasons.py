"""Every reason is true of the snapshot it came from, whatever the policy and whatever stands around it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling import registry
from scheduling.messages import Text
from scheduling.types import Plan, Snapshot
from tests.scheduling.claims import false_claims
from tests.scheduling.strategies import EXAMPLES, quick_policy, snapshots
from tests.scheduling.worlds import DecidedPolicy, draw, waiting

EVERY = pytest.mark.parametrize("key", registry.POLICIES)
MANY = settings(max_examples=EXAMPLES, deadline=None)


@EVERY
@MANY
@given(snapshot=snapshots())
def test_every_reason_of_a_policy_is_true(key: str, snapshot: Snapshot) -> None:
    assert false_claims(snapshot, quick_policy(key).plan(snapshot)) == []


@EVERY
@MANY
@given(snapshot=snapshots(), damping=st.sampled_from([0.0, 30.0, 90.0]))
def test_every_reason_is_true_with_tiers_and_damping_around_the_policy(
    key: str, snapshot: Snapshot, damping: float
) -> None:
    lab = replace(snapshot, damping_seconds=damping)
    assert false_claims(lab, DecidedPolicy(quick_policy(key)).plan(lab)) == []


def test_an_untrue_reason_is_found() -> None:
    lab = draw({"a": 4}, waiting("1", 5), waiting("2", 1))
    assert false_claims(lab, Plan({}, {"1": Text("It needs 5 GPUs at once and only 4 are free.")})) == []
    assert false_claims(lab, Plan({}, {"1": Text("It needs 5 GPUs at once and only 3 are free.")}))
    assert false_claims(lab, Plan({}, {"1": Text("All 4 GPUs are in use.")}))
    assert false_claims(lab, Plan({}, {"2": Text("2 GPUs are being given back by other jobs; then it starts.")}))
    assert false_claims(lab, Plan({}, {"2": Text("The moon is full.")}))
