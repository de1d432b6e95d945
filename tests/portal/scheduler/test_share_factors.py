"""The scheduler charges for priority as the simulator does, from the start of an attempt on, and never afterwards."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from portal.forecast.services import policy_and_snapshot
from portal.jobs import editing, services
from portal.jobs.models import Allocation, Attempt, Job
from portal.jobs.spec import FIELDS
from portal.scheduler.job_history import History
from portal.scheduler.services import switch_policy
from portal.sentences.glossary import TERMS
from scheduling.share_factors import share_factor
from tests.portal.control_world import gpus_of, project_of, queue, ready_node, run_agents, turn
from tests.portal.past import ran
from tests.portal.upgrades import upgrade_from

pytestmark = pytest.mark.django_db


def used(owner: str) -> float:
    """Return the GPU-seconds that a policy is given for a user now."""
    _, seen = policy_and_snapshot()
    return sum(next(account for account in seen.accounts if account.name == owner).used)


def held_for(job: Job, seconds: int) -> None:
    Allocation.objects.filter(attempt__job=job).update(allocated_at=timezone.now() - timedelta(seconds=seconds))


@pytest.mark.both_databases
@pytest.mark.parametrize("priority", [-2, 0, 1, 10])
def test_what_a_job_holds_counts_by_its_priority(priority: int) -> None:
    switch_policy(None, "fifo", {})
    ready_node("a", 2)
    job = queue(2, priority=priority)
    turn()
    run_agents()
    assert gpus_of(job) == 2 and Attempt.objects.get().share_factor == share_factor(priority)
    held_for(job, 3600)
    assert used("alice") == pytest.approx(share_factor(priority) * 2 * 3600, abs=60)


@pytest.mark.both_databases
def test_what_it_held_counts_by_the_priority_of_then() -> None:
    """A job that waits again may be edited: what earlier attempts used stays as it was counted."""
    switch_policy(None, "fifo", {})
    ready_node("a", 1)
    job = queue(1, priority=2, resumable=True)
    turn()
    run_agents()
    held_for(job, 3600)
    services.hold(job.submitted_by, job)
    run_agents()
    job = services.release(job.submitted_by, job)
    editing.edit(job.submitted_by, job, {"priority": 0})
    assert used("alice") == pytest.approx(3 * 3600, abs=60)
    turn()
    assert list(Attempt.objects.order_by("number").values_list("share_factor", flat=True)) == [3, 1]


@pytest.mark.both_databases
def test_the_history_counts_each_attempt_by_its_factor() -> None:
    node = ready_node("a", 4)
    paid, plain = ran(node, 1, 1000), ran(node, 2, 1000)
    Attempt.objects.filter(job=paid).update(share_factor=5)
    now = timezone.now()
    history = History()
    history.refresh(now)
    [days] = history.gpu_seconds_by_day([], now.timestamp()).values()
    assert paid.submitted_by == plain.submitted_by
    assert sum(days) == pytest.approx(5 * 1000 + 2 * 1000, abs=1)


def test_of_two_equal_users_the_one_at_a_high_priority_gets_fewer_gpus() -> None:
    switch_policy(None, "fair_share", {})
    ready_node("a", 6)
    for _ in range(6):
        queue(1, owner="alice", priority=1)
        queue(1, owner="bob")
    turn()
    held = {
        owner: Allocation.objects.filter(attempt__job__submitted_by=project_of(owner).created_by).count()
        for owner in ("alice", "bob")
    }
    assert held == {"alice": 2, "bob": 4}


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
def test_what_an_earlier_release_recorded_counts_once() -> None:
    node = ready_node("a", 2)
    job = ran(node, 2, 1000, priority=5)
    upgrade_from("jobs", "0032_gpu_choice")
    assert Attempt.objects.get().share_factor == 1
    now = timezone.now()
    history = History()
    history.refresh(now)
    assert sum(history.gpu_seconds_by_day([], now.timestamp())[job.submitted_by_id, 0]) == pytest.approx(2000, abs=1)
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'jobs_attempt'")
            assert cursor.fetchone()[0] > 0, "the guards of attempts are gone"


def test_pages_state_the_factor() -> None:
    """They cannot compute it, since the jobs app does not know the scheduler."""
    assert (share_factor(0), share_factor(1), share_factor(2)) == (1, 2, 3)
    for text in (FIELDS["priority"].help, TERMS["priority"].text):
        assert "more of your share" in text and "twice at 1, three times at 2, and so on" in text
