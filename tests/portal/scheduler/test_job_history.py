"""What is learnt from the lab's past, and that reading it step by step gives the same as reading it at once."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from django.db import DatabaseError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.cluster.models import Node
from portal.jobs.models import Job
from portal.scheduler import job_history as module
from portal.scheduler import snapshot
from portal.scheduler.job_history import USAGE_DAYS, HeldGpus, History, RuntimeSample, speed_on
from scheduling.types import Curve
from tests.portal.control_world import queue, ready_node
from tests.portal.past import attempt, changed, ran

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock, since this module's tests may begin an hour after it was imported."""
    monkeypatch.setattr(timezone, "now", lambda: NOW)


@pytest.fixture
def node() -> Node:
    return ready_node("a", 8)


def read(now: datetime = NOW) -> History:
    history = History()
    history.refresh(now)
    return history


def script(job: Job) -> tuple[int, str, str]:
    return (job.project_id, job.launcher, job.entry)


def like(job: Job, arguments: str = "[]") -> tuple[float, ...]:
    history = read()
    people = (job.submitted_by_id, job.project_id)
    return history.similar_runs(script(job), arguments, people, history.speeds(script(job), 8, 8).fixed).lengths


def test_use_falls_into_the_days_it_was_in(node: Node) -> None:
    job = ran(node, 2, 3 * 3600, NOW - timedelta(hours=23))
    ran(node, 1, 3600, NOW - timedelta(days=31))
    used = read().gpu_seconds_by_day([HeldGpus(job.submitted_by_id, 0, NOW.timestamp() - 60, 4)], NOW.timestamp())
    [days] = used.values()
    assert days[:3] == pytest.approx([2 * 3600 + 240, 4 * 3600, 0], abs=1)
    assert len(days) == USAGE_DAYS


def test_use_adds_up_to_what_was_held_in_the_last_thirty_days(node: Node) -> None:
    dice = np.random.default_rng(1)
    expected = 0.0
    for _ in range(40):
        end = NOW - timedelta(days=float(dice.uniform(0, 33)))
        seconds, gpus = float(dice.exponential(200_000)), int(dice.integers(1, 5))
        ran(node, gpus, seconds, end)
        oldest = NOW - timedelta(days=USAGE_DAYS)
        expected += gpus * max(0.0, (end - max(oldest, end - timedelta(seconds=seconds))).total_seconds())
    used = read().gpu_seconds_by_day([], NOW.timestamp())
    assert sum(sum(days) for days in used.values()) == pytest.approx(expected, abs=5)
    assert all(0 <= second <= 8 * 86_400 * 40 for days in used.values() for second in days)


def test_people_and_groups_are_distinguished(node: Node) -> None:
    from django.contrib.auth.models import Group

    group = Group.objects.create(name="vision")
    mine, ours = ran(node, 1, 100), ran(node, 1, 200, group=group)
    theirs = ran(node, 1, 300, owner="bob")
    used = read().gpu_seconds_by_day([], NOW.timestamp())
    assert {key: sum(days) for key, days in used.items()} == pytest.approx(
        {(mine.submitted_by_id, 0): 100, (ours.submitted_by_id, group.pk): 200, (theirs.submitted_by_id, 0): 300},
        abs=0.2,
    )


def test_reading_step_by_step_gives_the_same_as_reading_at_once(node: Node) -> None:
    dice = np.random.default_rng(2)
    kept, begin = History(), NOW - timedelta(days=95)
    job = queue(entry="train0.py")
    for step in range(40):
        now = begin + timedelta(days=2.5) * step
        for _ in range(int(dice.integers(0, 4))):
            past = ran(
                node, int(dice.integers(1, 5)), float(dice.uniform(50, 9000)),
                now - timedelta(seconds=float(dice.uniform(0, 500))), float(dice.uniform(1, 40)),
                entry=f"train{int(dice.integers(2))}.py", arguments=[str(dice.integers(2))],
            )  # fmt: skip
            changed(past, None, float(dice.uniform(0, 9)))
        kept.refresh(now)
        if step % 5:
            continue
        fresh = read(now)
        at, people = now.timestamp(), (job.submitted_by_id, job.project_id)
        assert kept.gpu_seconds_by_day([], at) == fresh.gpu_seconds_by_day([], at)
        for arguments in ('["0"]', '["1"]', "[]"):
            speeds = [each.speeds(script(job), 8, 8).fixed for each in (kept, fresh)]
            assert speeds[0] == speeds[1]
            assert kept.similar_runs(script(job), arguments, people, speeds[0]) == fresh.similar_runs(
                script(job), arguments, people, speeds[1]
            )
        assert kept.startup_seconds(script(job)) == fresh.startup_seconds(script(job))
        assert kept.measured_resize_seconds(script(job)) == fresh.measured_resize_seconds(script(job))


def test_what_is_written_a_little_late_is_not_missed(node: Node) -> None:
    history = read()
    job = ran(node, 1, 60, NOW - timedelta(seconds=90))
    history.refresh(NOW + timedelta(minutes=1))
    history.refresh(NOW + timedelta(minutes=2))
    assert history.similar_runs(script(job), "[]", (0, 0), None).lengths == pytest.approx((60,))
    assert sum(map(sum, history.gpu_seconds_by_day([], NOW.timestamp()).values())) == pytest.approx(60, abs=0.2)


def test_after_a_failed_read_it_reads_everything_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    job = ran(node, 1, 60)
    history = History()
    with monkeypatch.context() as broken:
        broken.setattr(module, "_merge_attempts", lambda rows: (_ for _ in ()).throw(DatabaseError("gone")))
        with pytest.raises(DatabaseError):
            history.refresh(NOW)
    history.refresh(NOW)
    assert sum(map(sum, history.gpu_seconds_by_day([], NOW.timestamp()).values())) == pytest.approx(60, abs=0.2)
    assert len(history.similar_runs(script(job), "[]", (0, 0), None).lengths) == 1


def test_the_most_similar_runs_show_how_long_a_job_is(node: Node) -> None:
    job = ran(node, 1, 100, arguments=["--epochs", "1"])
    ran(node, 1, 900, arguments=["--epochs", "9"])
    ran(node, 1, 5000, entry="other.py")
    assert like(job, '["--epochs", "9"]') == pytest.approx((900,))
    assert like(job, '["--epochs", "5"]') == pytest.approx((100, 900))
    new = queue(entry="new.py")
    assert like(new) == pytest.approx((100, 900, 5000))
    assert like(queue(owner="bob", entry="new.py")) == ()


def test_lengths_are_of_one_gpu(node: Node) -> None:
    job = ran(node, 4, 100)
    assert like(job) == pytest.approx((100 * 4**0.9,))


def test_only_what_the_job_went_on_from_counts(node: Node) -> None:
    for resumable in (True, False):
        job = queue(entry=f"{resumable}.py", resumable=resumable, state="SUCCEEDED", finished_at=NOW - HOUR)
        attempt(job, node, 1, NOW - 5 * HOUR, NOW - 4 * HOUR, "preempted", 1)
        attempt(job, node, 1, NOW - 3 * HOUR, NOW - 2.5 * HOUR, "failed", 1)
        attempt(job, node, 1, NOW - 2 * HOUR, NOW - HOUR, "succeeded", 1)
        assert like(job) == pytest.approx((7200 if resumable else 3600,))


def test_runs_on_several_sizes_show_how_a_program_scales(node: Node) -> None:
    for number in range(30):
        gpus = (1, 2, 4)[number % 3]
        job = ran(node, gpus, 1000 / gpus**0.5, NOW - HOUR - timedelta(minutes=number))
    curve = read().speeds(script(job), 8, 8).fixed
    assert curve is not None and curve.source == "history"
    assert 2 <= curve.speeds[3] < 2.4, "half of what one would suppose"
    assert read().speeds((0, "", ""), 8, 8).fixed is None


def test_the_first_line_of_a_rank_ends_the_beginning(node: Node) -> None:
    for seconds in (10, 20, 90):
        job = ran(node, 1, 600, first_line=seconds)
    ran(node, 1, 600, first_line=70, entry="other.py")
    assert read().startup_seconds(script(job)) == 20
    assert read().startup_seconds((0, "", "")) == 45
    assert History().startup_seconds(script(job)) is None


def test_the_pause_of_the_ranks_is_the_cost_of_a_resize(node: Node) -> None:
    job = ran(node, 1, 600)
    changed(job, None, 0.5, 3.0, 2.0)
    changed(ran(node, 1, 600, entry="other.py"), None, 9.0)
    assert read().measured_resize_seconds(script(job)) == 2.0
    assert read().measured_resize_seconds((0, "horovod", "")) == 2.5
    assert read().measured_resize_seconds((0, "torchrun", "")) is None


@pytest.mark.parametrize(
    ("lengths", "done", "value"),
    [((), 0, None), ((100,), 0, 100), ((100, 200, 300), 0, 200), ((100, 200, 300), 150, 100), ((100, 102), 400, 20)],
)
def test_what_is_left_is_what_those_that_were_longer_had_left(
    lengths: tuple[float, ...], done: float, value: float | None
) -> None:
    left = RuntimeSample.of(lengths).remaining(done)
    assert (left is None) == (value is None)
    if left is not None:
        assert left.value == pytest.approx(value, rel=0.01)
        assert left.source == "history" and 0 < left.error <= 5


def test_the_error_is_the_spread() -> None:
    alike, mixed = (
        RuntimeSample.of((100, 101, 99, 100)).remaining(0),
        RuntimeSample.of((10, 100, 1000, 10_000)).remaining(0),
    )
    assert alike is not None and mixed is not None
    assert alike.error == 0.05 and mixed.error > 1.5


def test_speeds_between_sizes_lie_on_a_line() -> None:
    assert speed_on(2.5, Curve((1.0, 2.0, 3.0))) == 2.5
    assert speed_on(9, Curve((1.0, 2.0, 3.0))) == 3.0
    assert speed_on(2, None) == 2**0.9


def test_reading_takes_five_queries_whatever_the_past(node: Node) -> None:
    for number in range(12):
        ran(node, 1, 100, NOW - timedelta(hours=number + 1))
    with CaptureQueriesContext(connection) as asked:
        history = read()
    assert len(asked) == 5
    with CaptureQueriesContext(connection) as asked:
        history.refresh(NOW + timedelta(seconds=5))
    assert len(asked) == 5


def test_what_similar_runs_did_does_not_depend_on_what_a_job_asks_for(node: Node) -> None:
    for gpus, seconds in ((1, 400.0), (4, 130.0)):
        ran(node, gpus, seconds)
    small, large = queue(1), queue(8)
    seen = {job.id: job for job in snapshot.take().jobs}
    assert seen[str(small.pk)].work == seen[str(large.pk)].work
    assert seen[str(small.pk)] == replace(
        snapshot.with_max_gpus(seen[str(large.pk)], 1), id=str(small.pk), submitted_at=small.submitted_at.timestamp()
    )
