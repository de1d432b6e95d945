"""Whom more time for a job would delay: compared in futures, and shown as far as a reader may see it."""

import time
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts.models import LabSettings, User
from portal.forecast import delays
from portal.forecast.services import policy_and_snapshot
from portal.jobs.models import Allocation, Attempt, Job, TimeExtension
from portal.jobs.time_extensions import services
from portal.jobs.time_extensions.services import HOUR
from portal.projects.models import Membership
from portal.scheduler.services import switch_policy
from portal.user_slots import BusyError
from scheduling import registry
from tests.portal.control_world import project_of, queue, ready_node, run_agents, turn
from tests.portal.jobs_world import make_user

pytestmark = pytest.mark.django_db
POLICIES = [
    key for key in ("fifo", "elastic_fifo", "fair_share", "tiresias", "srjf", "themis") if key in registry.POLICIES
]


def full_lab(policy: str = "fifo", gpus: int = 2) -> Job:
    """A node, all of it held by a job that has an hour left of its two."""
    switch_policy(None, policy, {})
    ready_node("a", gpus)
    job = queue(gpus, name="holder", launcher="command", time_limit_seconds=2 * HOUR)
    turn()
    run_agents()
    Attempt.objects.update(started_at=timezone.now() - timedelta(hours=1))
    return job


def compare(job: Job, seconds: int) -> list[tuple[int, int | None]]:
    policy, seen = policy_and_snapshot()
    found = delays.compare(policy, seen, str(job.pk), seconds)
    assert found is not None
    return list(found.jobs)


@pytest.mark.parametrize("policy", POLICIES)
def test_who_waits_for_its_gpus_starts_later_by_that_much(policy: str) -> None:
    job = full_lab(policy)
    waits = queue(2, name="waits", owner="bob", launcher="command", time_limit_seconds=HOUR)
    [(delayed, late)] = compare(job, 2 * HOUR)
    assert delayed == waits.pk
    assert late is not None and abs(late - 2 * HOUR) < 0.2 * HOUR


def test_no_other_job_waits_or_has_gpus_elsewhere() -> None:
    job = full_lab()
    assert compare(job, HOUR) == []
    ready_node("b", 2)
    queue(2, owner="bob", launcher="command")
    assert compare(job, HOUR) == []


def test_for_a_job_that_is_not_simulated_nothing_is_claimed() -> None:
    job = full_lab()
    queue(2, owner="bob", launcher="command")
    Job.objects.filter(pk=job.pk).update(state="HELD")
    Allocation.objects.filter(attempt__job=job).update(released_at=timezone.now())
    assert delays.delays_if_granted(job, HOUR, job.submitted_by) is None


def test_a_job_that_never_starts_in_the_simulated_day_is_named_without_a_number() -> None:
    job = full_lab()
    waits = queue(2, owner="bob", launcher="command")
    assert compare(job, 25 * HOUR) == [(waits.pk, None)]


def test_it_is_bounded_in_time_and_of_one_user_at_a_time() -> None:
    job = full_lab()
    for number in range(120):
        queue(1 + number % 2, owner="bob", launcher="command")
    began = time.perf_counter()
    found = delays.delays_if_granted(job, HOUR, job.submitted_by)
    assert found is not None and len(found.jobs) <= delays.MAX_JOBS
    assert time.perf_counter() - began < 10 * 2 * delays.FUTURES_SECONDS
    with delays._slots.hold(job.submitted_by_id), pytest.raises(BusyError):
        delays.delays_if_granted(job, HOUR, job.submitted_by)


def test_a_policy_that_is_no_longer_there_leaves_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_policy() -> None:
        raise ValueError("gone")

    job = full_lab()
    monkeypatch.setattr(delays, "policy_and_snapshot", no_policy)
    assert delays.delays_if_granted(job, HOUR, job.submitted_by) is None
    row = services.ask(job.submitted_by, job, HOUR)
    assert not delays.renew(row, job.submitted_by) and TimeExtension.objects.get().delays is None


class TestWhatAReaderSees:
    def shown(self, reader: User) -> list[tuple[str, str, bool]]:
        job = Job.objects.get(name="holder")
        found = delays.delays_if_granted(job, HOUR, reader)
        assert found is not None
        return [
            (each.job.name if each.job and each.visible else "", each.person, each.mine)
            for each in delays.seen_by(reader, found)
        ]

    def test_names_only_in_own_projects_and_people_only_with_the_queue(self) -> None:
        job = full_lab()
        queue(2, name="secret", owner="bob", launcher="command")
        queue(2, name="mine", launcher="command")
        alice, ada = job.submitted_by, make_user("ada", is_staff=True)
        assert self.shown(alice) == [("", "bob", False), ("mine", "alice", True)]
        assert self.shown(ada) == [("secret", "bob", False), ("mine", "alice", False)]
        LabSettings.objects.create(pk=1, queue_for_members=False)
        assert self.shown(alice) == [("", "", False), ("mine", "alice", True)]
        Membership.objects.create(project=project_of("bob"), user=alice, role=Membership.Role.VIEWER)
        assert self.shown(alice)[0] == ("secret", "bob", False)

    def test_the_queries_of_a_list_do_not_grow(self) -> None:
        job = full_lab()
        rows = [queue(1, name="secret", owner=f"user{number}", launcher="command") for number in range(6)]
        now, counts = timezone.now(), []
        for count in (1, 6):
            requests = [
                TimeExtension(pk=number, job=job, delays=[[each.pk, 600] for each in rows[:count]], delays_at=now)
                for number in range(count)
            ]
            with CaptureQueriesContext(
                connection,
            ) as queries:
                found = delays.as_seen_by(job.submitted_by, requests)
            assert len(found) == count and len(found[0]) == count
            counts.append(len(queries))
        assert counts[0] == counts[1] <= 4
