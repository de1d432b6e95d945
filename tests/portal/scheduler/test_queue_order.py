"""Places in the queue and the jobs ahead that reasons name never contradict each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.scheduler.queue_order import queue_entries
from scheduling.messages import Message, Text
from scheduling.toolkit import reasons
from scheduling.toolkit.reasons import InLine, InTurns, NoneFree, ahead_of
from scheduling.types import Job, Tier
from tests.portal.control_world import queue, ready_node, turn


def job(number: int, **fields: object) -> Job:
    usual: dict[str, object] = {"owner": "alice", "submitted_at": float(number), "min_gpus": 1, "max_gpus": 1}
    return Job(id=str(number), **{**usual, **fields})  # type: ignore[arg-type]


def behind(ahead: int) -> Message:
    return NoneFree(ahead, 4, everywhere=True, kept=False)


IN_USE = behind(0)


def places(jobs: list[Job], why: dict[int, Message]) -> list[int]:
    found = queue_entries(jobs, why)
    return sorted(found, key=lambda number: found[number].place)


def test_jobs_stand_by_tier_then_priority_then_submission() -> None:
    jobs = [
        job(1, tier="basic"),
        job(2),
        job(3, priority=2),
        job(4, tier="premium"),
        job(5, opportunistic=True),
        job(6),
    ]
    assert places(jobs, dict.fromkeys(range(1, 7), Text("It waits."))) == [4, 3, 2, 6, 1, 5]


def test_the_order_of_a_policy_goes_before() -> None:
    """Shortest first: the job that came last is the first."""
    why = {1: behind(2), 2: behind(1), 3: IN_USE}
    assert places([job(1), job(2), job(3)], why) == [3, 2, 1]


def test_a_reason_counts_the_jobs_of_higher_tiers_too() -> None:
    """Policies count within a layer."""
    jobs = [job(1, tier="premium"), job(2, tier="premium"), job(3), job(4)]
    why = {1: IN_USE, 2: behind(1), 3: IN_USE, 4: behind(1)}
    found = queue_entries(jobs, why)
    assert found[4].reason == behind(3) and found[4].place == 4
    assert found[3].reason == IN_USE and found[3].place == 3


def test_jobs_that_do_not_wait_have_no_place() -> None:
    assert set(queue_entries([job(1), job(2)], {2: IN_USE})) == {2}


waiting = st.lists(
    st.tuples(st.sampled_from(["premium", "standard", "basic"]), st.integers(-2, 2), st.none() | st.integers(0, 12)),
    max_size=12,
)


@given(waiting)
def test_each_reason_names_as_many_jobs_as_stand_before_its_place(rows: list[tuple[Tier, int, int | None]]) -> None:
    jobs = [job(number, tier=tier, priority=priority) for number, (tier, priority, _) in enumerate(rows)]
    why = {number: behind(count or 0) for number, (_, _, count) in enumerate(rows)}
    found = queue_entries(jobs, why)
    assert found.keys() == why.keys()
    for number, standing in found.items():
        if count := ahead_of(standing.reason):
            assert count == standing.place - 1 >= (rows[number][2] or 0)
    if all((count or 0) == 0 for _, _, count in rows):
        assert sorted(standing.place for standing in found.values()) == list(range(1, len(rows) + 1))


def test_the_number_is_found_within_other_reasons() -> None:
    turns = InTurns(behind(2), 10)
    assert queue_entries([job(1), job(2), job(3)], {1: IN_USE, 2: IN_USE, 3: turns})[3].reason == turns
    found = queue_entries([job(1), job(2)], {1: IN_USE, 2: InLine(1, 4)})
    assert found[2].reason == InLine(1, 4)
    assert reasons.ahead_of(reasons.with_ahead(turns, 7)) == 7


@pytest.mark.django_db
def test_a_standard_job_behind_premium_ones_shows_so() -> None:
    ready_node("a", 1)
    queue(tier="premium")
    first, second, premium = queue(), queue(), queue(tier="premium")
    turn()
    shown = {}
    for each in (first, second, premium):
        each.refresh_from_db()
        shown[each.pk] = (each.queue_position, each.why_waiting.partition(" ahead")[0])
    assert shown[premium.pk][0] == 1 and shown[first.pk][0] == 2
    assert shown[second.pk] == (3, "2 jobs are")


def test_the_count_in_a_sentence_of_a_lab_s_own_policy_is_that_of_its_place() -> None:
    found = queue_entries([job(1), job(2)], {1: Text("3 jobs are ahead of it."), 2: Text("It is Sunday.")})
    assert (found[1].reason, found[1].place) == (Text("3 jobs are ahead of it."), 4)
    assert found[2].place == 1
    (one,) = queue_entries([job(1)], {1: Text("1 job is ahead of it.")}).values()
    assert one.reason == Text("1 job is ahead of it.")
    (odd,) = queue_entries([job(1)], {1: InLine("many", 1)}).values()  # type: ignore[arg-type]
    assert odd.place == 1
