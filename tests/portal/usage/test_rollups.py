"""Daily sums agree with the facts, whenever and however often they are made; capacity is recorded as it changes."""

from datetime import UTC, date, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.cache import cache
from django.core.management import call_command
from django.utils import timezone

from portal.accounts.limits import set_limit
from portal.cluster import services as cluster
from portal.cluster.models import Gpu, Node
from portal.jobs import events, lifecycle
from portal.jobs import services as jobs
from portal.jobs.models import Attempt, Job
from portal.usage import capacity, rollups, tasks
from portal.usage.ledger import Day, LedgerLine
from portal.usage.models import CapacitySpell, LabDay, LedgerDay, ShareWeight, UsageDay
from tests import month
from tests.examples import examples
from tests.portal.jobs_world import exit as end
from tests.portal.jobs_world import make_job, make_node, make_project, make_user, place, run

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
NOW = datetime(2026, 11, 20, 15, 30, tzinfo=UTC)
HOUR = 3_600_000_000
JOBS = examples(1_200, 300)
"""The number of jobs in a month."""


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    """Clear what is cached of another test's lab."""
    cache.clear()


def stored() -> list[Any]:
    names: dict[type[LabDay | LedgerDay | UsageDay], tuple[str, ...]] = {
        LabDay: ("day", "capacity", "unclaimed"),
        LedgerDay: ("day", "user", "group", "entitled", "used", "lent", "borrowed", "spare"),
        UsageDay: ("day", "user", "project", "allocated", "starting", "failed", "interrupted", "submitted", "waits"),
    }
    return [sorted(map(str, model.objects.values_list(*columns))) for model, columns in names.items()]


def whole(days: dict[date, Day]) -> dict[date, tuple[int, int, int, int]]:
    return {
        day: (
            sums.capacity,
            sums.idle,
            sum(line.used for line in sums.lines.values()),
            sum(spent.allocated for spent in sums.spent.values()),
        )
        for day, sums in days.items()
    }


def test_sums_are_the_same_made_once_twice_or_rebuilt() -> None:
    month.make(NOW, count=JOBS, rolled=False)
    assert rollups.roll_up(NOW) == 30
    first = stored()
    assert rollups.roll_up(NOW) == 0 and stored() == first
    assert rollups.roll_up(NOW, rebuild=True) == 30 and stored() == first
    LabDay.objects.filter(day__in=[date(2026, 11, 3), date(2026, 11, 17)]).delete()
    assert rollups.roll_up(NOW) == 2 and stored() == first


def test_a_window_is_the_same_from_sums_and_straight_from_the_facts() -> None:
    made = month.make(NOW, count=JOBS, rolled=False)
    first, last = made.start.date(), NOW.date()
    live = rollups.daily_sums(first, last, NOW)
    rollups.roll_up(NOW)
    assert whole(rollups.daily_sums(first, last, NOW)) == whole(live)
    assert rollups.daily_sums(first, last, NOW) == live


def test_a_month_sums_to_capacity_times_time_exactly() -> None:
    made = month.make(NOW, count=JOBS)
    days = rollups.daily_sums(made.start.date(), NOW.date(), NOW)
    spells = CapacitySpell.objects.values_list("since", "until")
    offered = sum(((until or NOW) - since) // timedelta(microseconds=1) for since, until in spells)
    assert sum(sums.capacity for sums in days.values()) == offered
    for sums in days.values():
        used = sum(line.used for line in sums.lines.values())
        assert used + sums.idle == sums.capacity
        assert sum(line.lent - line.borrowed for line in sums.lines.values()) == 0
        assert used == sum(spent.allocated for spent in sums.spent.values())


def test_an_attempt_that_fails_later_turns_its_past_days_into_waste(monkeypatch: pytest.MonkeyPatch) -> None:
    night = NOW.replace(hour=2)
    month.make(night, count=JOBS)
    attempt = Attempt.objects.filter(ended_at=None, started_at__lt=night - timedelta(hours=3)).first()
    assert attempt is not None
    job = Job.objects.get(pk=attempt.job_id)

    def useful() -> int:
        rows = UsageDay.objects.filter(user=job.submitted_by_id, project=job.project_id)
        return sum(row.allocated - row.starting - row.failed - row.interrupted for row in rows)

    before = useful()
    later = night + timedelta(hours=1)
    monkeypatch.setattr(timezone, "now", lambda: later)
    for part in attempt.containers.exclude(state="EXITED"):
        end(part, 1)
    assert rollups.roll_up(later + timedelta(minutes=5)) >= 1
    assert useful() < before


def test_numbers_of_a_day_that_is_not_over_are_computed_when_asked_for() -> None:
    now = timezone.now()
    alice = make_user("alice")
    node = make_node("a", 2, approved_at=now - timedelta(minutes=30))
    capacity.record(now)
    attempt = place(make_job(make_project(alice), max_gpus=1, launcher="command"), list(node.gpus.all())[:1])
    run(attempt.containers.get())
    later = now + timedelta(minutes=10)
    days = rollups.daily_sums(rollups.today(now), rollups.today(later), later)
    lines = [line for sums in days.values() for line in sums.lines.values()]
    assert sum(line.used for line in lines) == pytest.approx(HOUR / 6, rel=0.02)
    assert sum((sums.capacity for sums in days.values()), 0) > 0


def test_time_on_hold_gives_no_right_to_a_share() -> None:
    alice = make_user("alice")
    make_node("a", 1)
    capacity.record()
    job = make_job(make_project(alice))
    lifecycle.record(job, events.Submitted("alice"), actor=alice)
    jobs.hold(alice, job)
    later = timezone.now() + timedelta(hours=1)
    days = rollups.daily_sums(rollups.today(later), rollups.today(later), later)
    assert sum(line.entitled for sums in days.values() for line in sums.lines.values()) < HOUR / 600


def test_what_is_slow_to_compute_is_kept_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    month.make(NOW, count=100)
    asked: list[datetime] = []
    compute = rollups.compute_days

    def counted(days: Any, now: datetime) -> list[Day]:
        asked.append(now)
        return compute(days, now)

    monkeypatch.setattr(rollups, "compute_days", counted)
    soon, later = NOW + timedelta(seconds=30), NOW + timedelta(minutes=2)
    for now in (NOW, soon):
        rollups.daily_sums(NOW.date(), NOW.date(), now)
    assert asked == [NOW, soon]
    monkeypatch.setattr(rollups, "SLOW_SECONDS", 0.0)
    asked.clear()
    first, second, third = (rollups.daily_sums(NOW.date(), NOW.date(), now) for now in (NOW, soon, later))
    assert asked == [NOW, later] and first == second != third


# --- capacity ------------------------------------------------------------------------------------------------------


def spells(node: Node) -> list[tuple[datetime, datetime | None]]:
    return list(CapacitySpell.objects.filter(gpu__node=node).order_by("since").values_list("since", "until"))


def test_a_node_counts_from_its_approval_and_until_it_was_last_heard_of() -> None:
    now = timezone.now()
    node = make_node("a", 1, approved_at=now - timedelta(days=2))
    assert capacity.record(now) == 1 and capacity.record(now) == 0
    assert spells(node) == [(node.approved_at, None)]
    silent = now + timedelta(minutes=10)
    capacity.record(silent)
    assert spells(node) == [(node.approved_at, node.last_seen_at)]
    Node.objects.update(last_seen_at=silent)
    capacity.record(silent)
    assert spells(node)[1:] == [(silent, None)]


def test_a_gpu_that_falls_ill_or_goes_away_no_longer_counts() -> None:
    node = make_node("a", 3)
    capacity.record()
    first, second, _ = node.gpus.all()
    Gpu.objects.filter(pk=first.pk).update(healthy=False)
    Gpu.objects.filter(pk=second.pk).update(present=False)
    capacity.record()
    assert CapacitySpell.objects.filter(until=None).count() == 1


def test_what_an_admin_does_with_a_node_counts_at_once() -> None:
    admin = make_user("ada", is_staff=True)
    node = make_node("a", 2, approved_at=None)
    capacity.record()
    assert not spells(node)
    cluster.approve(admin, node)
    assert [until for _, until in spells(node)] == [None, None]
    cluster.remove(admin, node)
    assert None not in [until for _, until in spells(node)]


def test_a_weight_counts_from_when_it_was_set_and_back_to_one_when_taken_away() -> None:
    admin, bob = make_user("ada", is_staff=True), make_user("bob")
    set_limit(admin, bob, max_gpus=None, max_queued=None, weight=3.0)
    set_limit(admin, bob, max_gpus=4, max_queued=None, weight=3.0)
    set_limit(admin, bob, max_gpus=None, max_queued=None)
    assert list(ShareWeight.objects.values_list("user", "weight")) == [(bob.pk, 3.0), (bob.pk, 1.0)]


def test_the_tasks_and_the_command_do_it() -> None:
    make_node("a", 1, approved_at=timezone.now() - timedelta(days=3))
    tasks.look()
    assert CapacitySpell.objects.count() == 1
    tasks.roll_up()
    assert LabDay.objects.count() == 3
    output = StringIO()
    call_command("rollup", stdout=output)
    assert output.getvalue() == "0 days summed up.\n"
    call_command("rollup", "--rebuild", stdout=output)
    assert output.getvalue().endswith("3 days summed up.\n")


def test_a_day_is_read_back_as_it_was_computed() -> None:
    month.make(NOW, count=150)
    day = date(2026, 11, 10)
    (computed,) = rollups.compute_days([day], NOW)
    (read,) = rollups.daily_sums(day, day, NOW).values()
    assert read == computed and isinstance(next(iter(read.lines.values())), LedgerLine)
