"""AFS: the next GPU goes to the shorter job, unless a longer one makes much better use of it."""

import pytest
from hypothesis import given, settings

from scheduling.check import violations
from scheduling.policies.afs import Afs
from scheduling.types import Curve, Estimate, Plan, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.strategies import EXAMPLES, snapshots
from tests.scheduling.worlds import DecidedPolicy, World, draw, reaches_stable_plan, running, sizes, waiting

LINEAR = Curve((1.0, 2.0, 3.0, 4.0))
GOOD = Curve((1.0, 1.9, 2.7, 3.4))
POOR = Curve((1.0, 1.2, 1.3, 1.35))
SHORT, LONG = Estimate(600.0), Estimate(36_000.0)


def decide(snapshot: Snapshot, policy: Afs | None = None) -> Plan:
    plan = (policy or Afs()).plan(snapshot)
    assert violations(snapshot, plan) == []
    return plan


def test_the_shorter_job_goes_first() -> None:
    lab = draw({"a": 1}, waiting("long", work=LONG), waiting("short", work=SHORT))
    plan = decide(lab)
    assert sizes(plan) == {"short": 1}
    assert reasons_of(plan)["long"] == (
        "All the only GPU is in use; it has about 10 hours of work left on one GPU, and shorter jobs go first."
    ).replace("All the", "The")


def test_each_gets_one_before_a_job_whose_speed_falls_off_gets_two() -> None:
    lab = draw(
        {"a": 2},
        waiting("long", 1, 4, work=LONG, elastic=True),
        waiting("short", 1, 4, work=SHORT, elastic=True, speed=GOOD),
    )
    assert sizes(decide(lab)) == {"long": 1, "short": 1}


def test_a_short_job_that_scales_perfectly_gets_two_before_a_longer_one_has_any() -> None:
    """The second GPU doubles its speed, as much as the first does for the other."""
    long = waiting("long", 1, 4, work=LONG, elastic=True)
    short = waiting("short", 1, 4, work=SHORT, elastic=True, speed=LINEAR)
    assert sizes(decide(draw({"a": 2}, long, short))) == {"short": 2}
    assert sizes(decide(draw({"a": 3}, long, short))) == {"short": 2, "long": 1}


def test_a_longer_job_takes_what_a_shorter_one_would_hardly_use() -> None:
    lab = draw(
        {"a": 5},
        waiting("long", 1, 4, work=LONG, elastic=True, speed=GOOD),
        waiting("short", 1, 4, work=SHORT, elastic=True, speed=POOR),
    )
    assert sizes(decide(lab)) == {"long": 4, "short": 1}


def test_the_length_of_a_job_is_read_at_its_own_count() -> None:
    """Voda's transcription read it at the other one's: both have one GPU, and y is the shorter one only by its speed."""
    fast, slow = Curve((4.0, 7.6)), Curve((1.0, 1.9))
    lab = draw(
        {"a": 3},
        waiting("x", 1, 2, work=Estimate(2000.0), elastic=True, speed=slow),
        waiting("y", 1, 2, work=Estimate(4000.0), elastic=True, speed=fast),
    )
    assert sizes(decide(lab)) == {"x": 1, "y": 2}


def test_a_job_that_needs_several_at_once_counts_its_gain_per_gpu() -> None:
    lab = draw({"a": 4}, waiting("wide", 4, work=LONG), waiting("short", 1, 4, work=SHORT, elastic=True, speed=GOOD))
    assert sizes(decide(lab)) == {"short": 4}


def test_longer_jobs_are_stopped_for_shorter_ones_unless_switched_off() -> None:
    lab = draw({"a": 1}, running("long", {"a": 1}, work=LONG, preemptible=True), waiting("short", work=SHORT))
    plan = decide(lab)
    assert sizes(plan) == {}
    assert reasons_of(plan)["short"] == "1 GPU is being given back by other jobs; then it starts."
    assert sizes(decide(lab, Afs(preempt=False))) == {"long": 1}


def test_of_unknown_lengths_the_one_that_had_the_least_goes_first() -> None:
    lab = draw({"a": 1}, waiting("old", served_gpu_seconds=1e5), waiting("new"))
    plan = decide(lab)
    assert sizes(plan) == {"new": 1}
    assert reasons_of(plan)["old"].endswith(
        "how long it takes is not known, it had 28 hours of one GPU so far, and those who had less go first."
    )


def test_served_so_far_decides_where_the_admin_trusts_no_length() -> None:
    lab = draw({"a": 1}, waiting("old", work=SHORT, served_gpu_seconds=1e5), waiting("new", work=LONG))
    assert sizes(decide(lab)) == {"old": 1}
    assert sizes(decide(lab, Afs(lengths="served"))) == {"new": 1}


def test_waiting_makes_up_for_what_a_job_was_served() -> None:
    patient = waiting("patient", served_gpu_seconds=20_000.0, since=1000.0)
    other = waiting("other", served_gpu_seconds=10_000.0, since=1000.0)
    assert sizes(decide(draw({"a": 1}, patient, other, now=1000.0))) == {"other": 1}
    assert sizes(decide(draw({"a": 1}, patient, other, now=25_000.0))) == {"patient": 1}


def test_two_jobs_of_unknown_length_do_not_take_turns_every_minute() -> None:
    x = running("x", {"a": 1}, preemptible=True, served_gpu_seconds=610.0)
    assert sizes(decide(draw({"a": 1}, x, waiting("y", served_gpu_seconds=600.0)))) == {"x": 1}


def test_a_job_that_was_just_stopped_does_not_go_before_the_one_it_was_stopped_for() -> None:
    """The credit for waiting counts in classes: a second of it would make 1,200 s served shorter than 2,000 s at once."""
    stopped = waiting("stopped", served_gpu_seconds=1200.0, since=1000.0)
    first = waiting("first", served_gpu_seconds=2000.0, since=700.0)
    for now, ahead in ((1006.0, "first"), (1500.0, "first"), (1700.0, "stopped")):
        assert sizes(decide(draw({"a": 1}, first, stopped, now=now))) == {ahead: 1}, now


def test_higher_priority_starts_first() -> None:
    lab = draw({"a": 1}, waiting("urgent", work=LONG, priority=1), waiting("short", work=SHORT))
    assert sizes(decide(lab)) == {"urgent": 1}


@pytest.mark.parametrize(
    "policy", [Afs(lengths="served"), Afs(preempt=False), Afs(pays_within_seconds=86_400.0)], ids=str
)
@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshot=snapshots(), calm=snapshots(calm=True))
def test_the_laws_hold_for_each_option(policy: Afs, snapshot: Snapshot, calm: Snapshot) -> None:
    assert violations(snapshot, policy.plan(snapshot)) == []
    world = World.of(calm)
    assert reaches_stable_plan(world, DecidedPolicy(policy), cycles=30)
