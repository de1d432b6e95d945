"""First come, first served: strictly in order, or skipping what does not fit."""

from dataclasses import replace

from hypothesis import given, settings

from scheduling.check import violations
from scheduling.messages import Text
from scheduling.policies.fifo import Fifo
from scheduling.toolkit.estimates import speed
from scheduling.types import Estimate, Job, Limit, Plan, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.strategies import EXAMPLES, snapshots
from tests.scheduling.worlds import NOW, draw, running, sizes, waiting


def decide(snapshot: Snapshot, policy: Fifo | None = None) -> Plan:
    plan = (policy or Fifo()).plan(snapshot)
    assert violations(snapshot, plan) == []
    return plan


def test_jobs_start_in_the_order_they_came() -> None:
    assert sizes(decide(draw({"a": 3}, waiting("x", 2), waiting("y", 1), waiting("z", 1)))) == {"x": 2, "y": 1}


def test_higher_priority_starts_before_who_came_first() -> None:
    assert sizes(decide(draw({"a": 1}, waiting("x"), waiting("y", priority=1)))) == {"y": 1}


def test_strictly_the_head_of_the_queue_holds_up_all_behind_it() -> None:
    lab = draw({"a": 4}, running("r", {"a": 2}), waiting("large", 4), waiting("small", 1))
    plan = decide(lab)
    assert sizes(plan) == {"r": 2}
    assert reasons_of(plan) == {
        "large": "It needs 4 GPUs at once and only 2 are free.",
        "small": "1 job is ahead of it and jobs start strictly in order; the first waits for 4 GPUs.",
    }


def test_skipping_lets_smaller_jobs_pass() -> None:
    lab = draw({"a": 4}, running("r", {"a": 2}), waiting("large", 4), waiting("small", 1))
    assert sizes(decide(lab, Fifo(strict=False))) == {"r": 2, "small": 1}


def test_a_job_that_can_never_start_does_not_hold_up_others() -> None:
    lab = draw(
        {"a": 2}, waiting("huge", 9), waiting("unready", blocked=Text("Its environment is not ready.")), waiting("x", 2)
    )
    plan = decide(lab)
    assert sizes(plan) == {"x": 2}
    assert reasons_of(plan) == {
        "huge": "It needs 9 GPUs at once, but the nodes it can run on have only 2.",
        "unready": "Its environment is not ready.",
    }


def test_a_job_at_a_limit_does_not_hold_up_others() -> None:
    limit = Limit("alice", 2, frozenset({"r", "mine"}))
    lab = draw({"a": 4}, running("r", {"a": 2}), waiting("mine", 1), waiting("other", 1, owner="bob"), limits=(limit,))
    plan = decide(lab)
    assert sizes(plan) == {"r": 2, "other": 1}
    assert reasons_of(plan)["mine"] == "The limit of 2 GPUs for alice is reached: 2 are in use and it needs 1."


def test_gpus_on_their_way_back_still_count_for_a_limit() -> None:
    limit = Limit("alice", 2, frozenset({"x"}), leaving=2)
    assert sizes(decide(draw({"a": 4}, waiting("x", 1), leaving={"a": 2}, limits=(limit,)))) == {}


def test_a_job_that_asked_for_a_range_gets_what_is_free_or_its_minimum() -> None:
    lab = draw({"a": 3}, waiting("x", 1, 4), waiting("y", 1, 1))
    assert sizes(decide(lab)) == {"x": 3}
    assert sizes(decide(lab, Fifo(size="least"))) == {"x": 1, "y": 1}


def test_it_prefers_the_node_that_is_filled_best() -> None:
    assert dict(decide(draw({"a": 4, "b": 2}, waiting("x", 2))).target["x"]) == {"b": 2}


def test_a_distributed_job_larger_than_any_node_spreads_and_a_plain_command_does_not() -> None:
    assert sizes(decide(draw({"a": 2, "b": 2}, waiting("x", 3)))) == {"x": 3}
    plan = decide(draw({"a": 2, "b": 2}, waiting("x", 3, spread=False)))
    assert reasons_of(plan) == {"x": "It needs 3 GPUs on one node, but the largest node it can run on has only 2."}


def test_running_elastic_jobs_keep_what_they_have() -> None:
    assert sizes(decide(draw({"a": 4}, running("x", {"a": 2}, 1, 4)))) == {"x": 2}


def test_each_way_to_wait_has_its_own_sentence() -> None:
    busy = draw({"a": 2}, running("r", {"a": 2}), waiting("x"), waiting("y"))
    assert reasons_of(decide(busy, Fifo(strict=False))) == {
        "x": "All 2 GPUs are in use.",
        "y": "1 job is ahead of it and all 2 GPUs are in use.",
    }
    apart = draw({"a": 3, "b": 3}, running("r", {"a": 2, "b": 1}), waiting("x", 3, spread=False))
    assert reasons_of(decide(apart)) == {
        "x": "It needs 3 GPUs at once; the largest group of free ones is 2, on node b."
    }
    elsewhere = draw({"a": 1, "b": 1}, running("r", {"a": 1}), waiting("x", nodes=frozenset({"a"})))
    assert reasons_of(decide(elsewhere)) == {"x": "The only GPU of the nodes it can run on is in use."}
    closed = draw({"a": 1, "b": 1}, waiting("x", nodes=frozenset({"a"})), closed=("a",))
    assert reasons_of(decide(closed)) == {"x": "None of the nodes it can run on is open for new work now."}
    dark = draw({"a": 1}, waiting("x"), closed=("a",))
    assert reasons_of(decide(dark)) == {
        "x": "No node is open for new work now: all are lost, drained or not approved yet."
    }
    modest = draw({"a": 4}, waiting("x", 3), limits=(Limit("group vision", 2, frozenset({"x"})),))
    assert reasons_of(decide(modest)) == {
        "x": "It needs 3 GPUs, but the limit for group vision is 2: submit it with fewer, or ask an admin."
    }


BACKFILL = Fifo(backfill=True)


def lasting(job: Job, seconds: float) -> Job:
    """Return a job with a known duration on the GPUs that it holds or asks for."""
    return replace(job, work=Estimate(seconds * speed(job, job.gpus or job.max_gpus)))


def test_a_short_job_passes_the_first_if_it_ends_before_that_can_start() -> None:
    r = lasting(running("r", {"a": 2}), 600)
    short, long = lasting(waiting("short", 1), 600), lasting(waiting("long", 1), 601)
    plan = decide(draw({"a": 4}, r, waiting("large", 4), long, short), BACKFILL)
    assert sizes(plan) == {"r": 2, "short": 1}
    assert reasons_of(plan)["long"] == (
        "1 job is ahead of it, and starting now it could hold up the first, which waits for 4 GPUs, expected in about 10 min."
    )
    assert sizes(decide(draw({"a": 4}, r, waiting("large", 4), short))) == {"r": 2}


def test_a_job_passes_on_gpus_the_first_will_not_need() -> None:
    r = lasting(running("r", {"a": 2}), 600)
    lab = draw({"a": 5}, r, waiting("large", 4), waiting("one", 1), waiting("two", 1))
    assert sizes(decide(lab, BACKFILL)) == {"r": 2, "one": 1}
    elsewhere = draw({"a": 4, "b": 2}, r, waiting("large", 4, spread=False), waiting("two", 2), waiting("three", 1))
    assert {job: dict(where) for job, where in decide(elsewhere, BACKFILL).target.items()} == {
        "r": {"a": 2},
        "two": {"b": 2},
    }


def test_a_job_of_unknown_length_does_not_count_as_short_but_its_time_limit_does() -> None:
    r = lasting(running("r", {"a": 2}), 600)
    lab = draw({"a": 4}, r, waiting("large", 4), waiting("unknown", 1), waiting("limited", 1, longest_seconds=500.0))
    assert sizes(decide(lab, BACKFILL)) == {"r": 2, "limited": 1}


def test_a_running_job_ends_at_its_time_limit_at_the_latest() -> None:
    r = replace(lasting(running("r", {"a": 2}), 9000), started_at=NOW - 300, longest_seconds=900.0)
    plan = decide(draw({"a": 4}, r, waiting("large", 4), lasting(waiting("x", 1), 601)), BACKFILL)
    assert "expected in about 10 min" in reasons_of(plan)["x"]


def test_what_has_been_started_in_the_same_turn_counts_for_the_promise() -> None:
    lab = draw({"a": 4}, lasting(waiting("first", 2), 300), waiting("large", 4), lasting(waiting("x", 1), 300))
    assert sizes(decide(lab, BACKFILL)) == {"first": 2, "x": 1}
    assert sizes(decide(replace(lab, jobs=(*lab.jobs[:2], lasting(lab.jobs[2], 301))), BACKFILL)) == {"first": 2}


@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshot=snapshots(max_jobs=16))
def test_backfilling_starts_whatever_would_start_without_it_and_explains_the_rest(snapshot: Snapshot) -> None:
    plain, filled = decide(snapshot, Fifo()), decide(snapshot, BACKFILL)
    assert set(sizes(plain)) <= set(sizes(filled))
    assert {job.id for job in snapshot.jobs if job.waiting and not filled.target.get(job.id)} == set(filled.reasons)
