"""Each law about what becomes of jobs finds what was planted against it."""

from dataclasses import replace
from typing import Any

import pytest

from tests.outside import history_laws as laws
from tests.outside.planted import START, act, attempt, job, quiet, record, repeated, reservation, span, stopped, waiting
from tests.outside.record import Asked, Event, Part, Record, Step
from tests.outside.rest import Failure

AT = START + 10.0


def test_a_held_job_starts() -> None:
    placed = Event(3, AT, "placed", "Attempt 1 was placed on n1 by fifo.")
    acts = [act("hold", START, job=1), act("release", AT + 5, job=1)]
    (found,) = laws.held_jobs_never_start(record([job(1)], acts=acts, events={1: [placed]}))
    assert (found.job, found.at) == (1, AT)
    later = replace(placed, at=AT + 6)
    assert not list(laws.held_jobs_never_start(record([job(1)], acts=acts, events={1: [later]})))


@pytest.mark.parametrize(("finished_at", "broken"), [(AT + 0.5, False), (AT + 20, True), (None, True)])
def test_a_cancelled_job_ends_late_or_never(finished_at: float | None, broken: bool) -> None:
    made = record([job(1, state="CANCELLED", finished_at=finished_at)], acts=[act("cancel", AT, job=1)])
    assert [found.job for found in laws.cancelled_jobs_end_in_time(made)] == [1] * broken


def preempted(
    at: float, created: float, acts: Any = (), waits: Any = (), reservations: Any = (), **fields: Any
) -> Record:
    tried, event = stopped(at, created)
    one = job(1, **fields)
    polls = repeated(jobs=[one, *waits], reservations=reservations)
    return record([one, *waits], polls=polls, attempts={1: [tried]}, events={1: [event]}, acts=acts)


def test_a_job_that_cannot_stop_is_preempted() -> None:
    (found,) = laws.jobs_that_cannot_stop_are_not_preempted(preempted(AT, START))
    assert found.job == 1
    for fields in ({"resumable": True}, {"opportunistic": True}):
        assert not list(laws.jobs_that_cannot_stop_are_not_preempted(preempted(AT, START, **fields)))


@pytest.mark.parametrize(
    ("policy", "why", "broken"),
    [
        ("fifo {}", {}, True),
        ("elastic_fifo {}", {}, True),
        ("srjf {}", {}, False),
        ("fifo {}", {"waits": [waiting(2, tier="premium")]}, False),
        ("fifo {}", {"waits": [waiting(2, tier="basic")]}, True),
        ("fifo {}", {"reservations": (reservation(),)}, False),
    ],
)
def test_a_policy_that_does_not_preempt_stops_a_job(policy: str, why: dict[str, Any], broken: bool) -> None:
    made = preempted(AT, START, [act("policy", START - 9, text=policy)], resumable=True, **why)
    assert [found.job for found in laws.policies_that_do_not_preempt_stop_no_job(made)] == [1] * broken


@pytest.mark.parametrize(
    ("after", "acts", "broken"),
    [
        (0.3, [], True),
        (2.9, [], True),
        (3.1, [], False),
        (0.3, [act("drain", AT - 1)], False),
        (0.3, [act("policy", AT - 1, text="srjf {}")], False),
        (0.3, [act("policy", AT - 9, text="srjf {}")], True),
        (0.3, [act("limit", AT - 1, who="alice", value=1)], True),
    ],
)
def test_a_preemption_soon_after_the_placement(after: float, acts: list[Any], broken: bool) -> None:
    made = preempted(AT + after, AT, acts, resumable=True)
    assert [found.job for found in laws.no_preemption_soon_after_placement(made)] == [1] * broken


def test_a_reservation_that_begins_may_stop_a_newcomer() -> None:
    made = preempted(START + 5.2, START + 4.5, reservations=(reservation(),), resumable=True)
    assert not list(laws.no_preemption_soon_after_placement(made))


def ended(asked: Asked, outcomes: tuple[str, ...], acts: Any = (), **fields: Any) -> list[str]:
    attempts = [attempt(START, AT, number=number, outcome=outcome) for number, outcome in enumerate(outcomes, start=1)]
    made = record([job(1, finished_at=AT, **fields)], asked={1: asked}, attempts={1: attempts}, acts=acts)
    return [found.text for found in laws.every_job_ends_rightly(made)]


@pytest.mark.parametrize(
    ("asked", "state", "outcomes", "broken"),
    [
        (Asked(5), "SUCCEEDED", ("succeeded",), False),
        (Asked(5), "SUCCEEDED", ("preempted", "succeeded"), False),
        (Asked(5), "FAILED", ("failed",), True),
        (Asked(5), "QUEUED", (), True),
        (Asked(5), "CANCELLED", ("cancelled",), True),
        (Asked(5, exit_code=3), "FAILED", ("failed",), False),
        (Asked(5, exit_code=3, retries=1), "FAILED", ("failed",), True),
        (Asked(5, exit_code=3, retries=1), "FAILED", ("failed", "preempted", "failed"), False),
        (Asked(5, exit_code=3), "SUCCEEDED", ("succeeded",), True),
        (Asked(5, overruns=True), "FAILED", ("timed_out",), False),
        (Asked(5, overruns=True), "FAILED", ("failed",), True),
        (Asked(5), "SUCCEEDED", ("error", "succeeded"), True),
        (Asked(5), "SUCCEEDED", ("lost", "succeeded"), True),
    ],
)
def test_a_job_ends_wrongly(asked: Asked, state: str, outcomes: tuple[str, ...], broken: bool) -> None:
    assert bool(ended(asked, outcomes, state=state)) == broken


@pytest.mark.parametrize(("state", "broken"), [("CANCELLED", False), ("SUCCEEDED", True), ("RUNNING", True)])
def test_a_cancelled_job_ends_as_cancelled(state: str, broken: bool) -> None:
    assert bool(ended(Asked(5), (), [act("cancel", START, job=1)], state=state)) == broken


def test_a_container_that_could_not_be_made_is_found_in_an_attempt_that_went_on() -> None:
    part = Part(
        "sl-1-a1-3", "host", "n1", (2,), None, AT, "create_error", "The node could not prepare the job's folders."
    )
    one = job(1, state="SUCCEEDED", finished_at=AT)
    made = record([one], asked={1: Asked(5)}, attempts={1: [attempt(START, AT, outcome="succeeded", parts=(part,))]})
    (found,) = laws.every_job_ends_rightly(made)
    assert "could not prepare" in found.text


def test_usage_that_does_not_add_up() -> None:
    fields: dict[str, Any] = {"spans": [span(1, since=START, until=START + 100)]}
    right = record([job(1)], usage={"alice": 100.3}, usage_total=100.3, **fields)
    assert not list(laws.usage_adds_up(right))
    (found,) = laws.usage_adds_up(replace(right, usage={"alice": 97.0}, usage_total=97.0))
    assert found.text == "alice held 100.0 GPU-seconds by the timeline and 97.0 by the usage report"
    assert len(list(laws.usage_adds_up(replace(right, usage={}, usage_total=0.0)))) == 1
    (found,) = laws.usage_adds_up(replace(right, usage_total=200.0))
    assert "its total 200.0" in found.text


def test_a_request_that_fails() -> None:
    made = replace(quiet(), failures=[Failure(AT, "GET nodes/", "500: oh")])
    (found,) = laws.no_request_fails(made)
    assert (found.at, found.text) == (AT, "GET nodes/: 500: oh")


@pytest.mark.parametrize(
    ("steps", "broken"),
    [
        ([(0, 1), (10, 50), (25, 90), (40, 130)], False),
        ([(0, 1), (10, 50), (25, 50), (40, 50)], True),
        ([(0, None), (10, None), (25, None)], True),
        ([(0, None), (10, None), (18, None)], False),
    ],
)
def test_a_running_job_that_reports_no_progress(steps: list[tuple[float, int | None]], broken: bool) -> None:
    seen = [Step(START + at, 1, step) for at, step in steps]
    made = record([job(1)], attempts={1: [attempt(START - 5)]}, steps=seen)
    assert [found.job for found in laws.running_jobs_make_progress(made)] == [1] * broken
    stopping = replace(made, attempts={1: [attempt(START - 5, stop_reason="preempted")]})
    assert not list(laws.running_jobs_make_progress(stopping))


def test_a_running_job_without_a_gpu() -> None:
    (found,) = laws.running_jobs_hold_gpus(record([job(1)]))
    assert found.job == 1 and "without a GPU for 20 s" in found.text
    held = record([job(1)], polls=repeated({"n1": [1, None, None, None]}, [job(1)]))
    assert not list(laws.running_jobs_hold_gpus(held))
