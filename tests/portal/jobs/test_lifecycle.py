"""How reports, requests of users and time change the states of containers, attempts and jobs."""

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from portal.cluster.models import Gpu, Node
from portal.jobs import lifecycle, services
from portal.jobs.models import Allocation, Attempt, Container, Job, JobState
from portal.jobs.rules import STOP_SECONDS, TRANSITIONS
from portal.projects.models import Project
from tests.portal.jobs_world import add_host, exit, make_job, make_node, make_project, make_user, place, run

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def project() -> Project:
    return make_project(make_user("alice"))


def gpus(*nodes: Node) -> list[Gpu]:
    return list(Gpu.objects.filter(node__in=nodes).select_related("node").order_by("id"))


def after(**time: float) -> Any:
    return timezone.now() + timedelta(**time)


def keep_alive(*nodes: Node, at: Any) -> None:
    Node.objects.filter(pk__in=[node.pk for node in nodes]).update(last_seen_at=at)


def sweep(at: Any, *alive: Node) -> None:
    keep_alive(*alive, at=at)
    lifecycle.sweep(at)


def parts_of(attempt: Attempt) -> list[Container]:
    return list(attempt.containers.order_by("index"))


def state_of(job: Job) -> str:
    return Job.objects.get(pk=job.pk).state


def test_it_runs_and_succeeds(project: Project) -> None:
    job = make_job(project, launcher="command", entry="true")
    attempt = place(job, gpus(make_node(gpus=1)))
    [part] = parts_of(attempt)
    assert job.state == JobState.RUNNING
    assert lifecycle.advance(part, "PREPARING", detail="fetching code")
    assert lifecycle.advance(part, "RUNNING")
    assert lifecycle.advance(part, "EXITED", exit_code=0, exit_reason="exited")
    job.refresh_from_db()
    attempt.refresh_from_db()
    assert (job.state, attempt.outcome, attempt.cause) == ("SUCCEEDED", "succeeded", {})
    assert job.started_at and job.finished_at and attempt.started_at and attempt.ended_at
    assert not Allocation.objects.filter(released_at=None).exists()
    assert [event.seq for event in job.events.order_by("seq")] == list(range(1, job.events.count() + 1))


def test_each_move_is_legal_or_changes_nothing(project: Project) -> None:
    order = list(TRANSITIONS)
    for there in order:
        for to in order:
            attempt = place(make_job(project), gpus(make_node(gpus=1)))
            [part] = parts_of(attempt)
            if there != "ASSIGNED":
                lifecycle.advance(part, there, exit_code=0)
            before = Container.objects.values().get(pk=part.pk)
            moved = lifecycle.advance(part, to, exit_code=1, exit_reason="oom")
            assert moved == (order.index(to) > order.index(there)), (there, to)
            if not moved:
                assert Container.objects.values().get(pk=part.pk) == before


def test_the_time_that_a_node_reports_is_limited_to_possible_ones(project: Project) -> None:
    attempt = place(make_job(project), gpus(make_node(gpus=1)))
    [part] = parts_of(attempt)
    lifecycle.advance(part, "RUNNING", at=after(days=300))
    part.refresh_from_db()
    assert part.running_at is not None and part.assigned_at <= part.running_at <= timezone.now()


def test_gpus_are_free_in_the_transaction_of_the_exit_container_by_container(project: Project) -> None:
    first, second = make_node(gpus=1), make_node(gpus=1)
    attempt = place(make_job(project, launcher="torchrun"), gpus(first, second))
    one, two = parts_of(attempt)
    exit(one, 0)
    assert list(Allocation.objects.filter(released_at=None).values_list("container", flat=True)) == [two.pk]


def test_when_the_driver_has_ended_the_hosts_are_asked_to_stop(project: Project) -> None:
    job = make_job(project)
    attempt = place(job, gpus(make_node(gpus=2)), driver=True)
    host, driver = parts_of(attempt)
    exit(driver, 0)
    host.refresh_from_db()
    assert (host.wanted, host.stop_reason, state_of(job)) == ("stop", "done", "RUNNING")
    assert host.allocations.get(gpu__index=0).requested_back_at is not None
    exit(host, None, "stopped")
    assert state_of(job) == "SUCCEEDED"


def test_a_failure_uses_a_retry_and_a_loss_does_not(project: Project) -> None:
    job = make_job(project, retries=1, launcher="command")
    node = make_node(gpus=1)
    for reason, code, state in (("lost", None, "QUEUED"), ("exited", 1, "QUEUED"), ("exited", 1, "FAILED")):
        [part] = parts_of(place(job, gpus(node)))
        exit(part, code, reason)
        job.refresh_from_db()
        assert job.state == state
    assert [attempt.number for attempt in job.attempts.all()] == [1, 2, 3]


def test_it_gives_up_after_three_errors_of_ours_in_a_row(project: Project) -> None:
    job = make_job(project, retries=5)
    node = make_node(gpus=1)
    for state in ("QUEUED", "QUEUED", "FAILED"):
        [part] = parts_of(place(job, gpus(node)))
        exit(part, None, "create_error", "the image is not there")
        job.refresh_from_db()
        assert job.state == state
    last = job.attempts.last()
    assert last is not None and last.cause["code"] == "environment"


def test_losing_one_part_ends_an_attempt_that_is_not_elastic(project: Project) -> None:
    first, second = make_node(gpus=1), make_node(gpus=1)
    job = make_job(project)
    one, two, driver = parts_of(place(job, gpus(first, second), driver=True))
    exit(two, None, "fenced")
    one.refresh_from_db()
    assert (one.wanted, one.stop_reason) == ("stop", "peer_lost")
    exit(one, None, "stopped")
    exit(driver, None, "stopped")
    assert state_of(job) == "QUEUED"


def test_an_elastic_attempt_survives_the_loss_of_what_it_can_do_without(project: Project) -> None:
    first, second = make_node(gpus=1), make_node(gpus=1)
    job = make_job(project, elastic=True, max_gpus=2)
    base, more, driver = parts_of(place(job, gpus(first, second), driver=True))
    exit(more, None, "lost")
    base.refresh_from_db()
    assert (base.wanted, state_of(job)) == ("run", "RUNNING")
    assert job.events.filter(kind="lost").exists()
    exit(base, None, "lost")
    driver.refresh_from_db()
    assert (driver.wanted, driver.stop_reason) == ("stop", "peer_lost")


def test_a_placed_job_cannot_be_placed_again(project: Project) -> None:
    job = make_job(project)
    place(job, gpus(make_node(gpus=1)))
    with pytest.raises(lifecycle.JobChangedError):
        lifecycle.start_attempt(Job(pk=job.pk), "fifo v1")


def test_cancelling_works_without_a_scheduler(project: Project) -> None:
    waiting = make_job(project)
    assert services.cancel(project.created_by, waiting).state == "CANCELLED"
    running = make_job(project)
    [part] = parts_of(place(running, gpus(make_node(gpus=1))))
    services.cancel(project.created_by, running)
    part.refresh_from_db()
    assert (part.wanted, part.stop_reason, state_of(running)) == ("stop", "cancelled", "RUNNING")
    exit(part, None, "stopped")
    assert state_of(running) == "CANCELLED"


def test_a_preempted_job_can_still_be_cancelled(project: Project) -> None:
    job = make_job(project)
    attempt = place(job, gpus(make_node(gpus=1)))
    [part] = parts_of(attempt)
    lifecycle.stop_attempt(attempt, "preempted")
    services.cancel(project.created_by, job)
    exit(part, 0)
    assert state_of(job) == "CANCELLED"


def test_an_attempt_whose_work_is_done_is_not_stopped_for_another_reason(project: Project) -> None:
    attempt = place(make_job(project), gpus(make_node(gpus=1)), driver=True)
    host, driver = parts_of(attempt)
    run(host)
    run(driver)
    exit(driver)
    lifecycle.stop_attempt(attempt, "cancelled")
    attempt.refresh_from_db()
    assert (attempt.wanted, attempt.stop_reason) == ("stop", "done")
    exit(host, None, "stopped")
    assert state_of(attempt.job) == "SUCCEEDED"


def test_only_parts_that_run_on_keep_their_gpus_when_a_drain_is_called_off(project: Project) -> None:
    leaving, staying = make_node(gpus=2), make_node(gpus=1)
    first, second, third = gpus(leaving, staying)
    attempt = place(make_job(project), [first, third])
    more = add_host(attempt, 2, leaving, [second])
    Node.objects.filter(pk=leaving.pk).update(draining=True)
    lifecycle.request_gpus_back(attempt, timezone.now())
    asked = Allocation.objects.filter(requested_back_at__isnull=False)
    assert {held.gpu.node for held in asked.select_related("gpu__node")} == {leaving}
    Container.objects.filter(pk=more.pk).update(wanted="stop")
    lifecycle.withdraw_gpu_request(attempt)
    assert [held.container for held in asked] == [more]


# --- time --------------------------------------------------------------------------------------------------------

FENCED = settings.FENCE_SECONDS + settings.FENCE_MARGIN_SECONDS


def test_a_silent_node_is_lost_only_after_fence_and_margin(project: Project) -> None:
    node = make_node(gpus=1)
    job = make_job(project)
    [part] = parts_of(place(job, gpus(node)))
    run(part)
    seen = timezone.now()
    keep_alive(node, at=seen)
    lifecycle.sweep(seen + timedelta(seconds=FENCED))
    assert state_of(job) == "RUNNING"
    lifecycle.sweep(seen + timedelta(seconds=FENCED + 1))
    part.refresh_from_db()
    assert (part.state, part.exit_reason, state_of(job)) == ("EXITED", "lost", "QUEUED")
    assert not lifecycle.advance(part, "RUNNING")


def test_a_node_heard_of_between_looking_and_locking_is_not_lost(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node(gpus=1)
    job = make_job(project)
    place(job, gpus(node))
    locked = lifecycle.get_locked
    now = after(seconds=FENCED + 1)

    def heard_meanwhile(job_id: int) -> Job:
        keep_alive(node, at=now)
        return locked(job_id)

    monkeypatch.setattr(lifecycle, "get_locked", heard_meanwhile)
    lifecycle.sweep(now)
    assert state_of(job) == "RUNNING"


def preempted(job: Job, seconds: int) -> None:
    """An attempt that ran so long and was stopped to make room."""
    attempt = place(job, gpus(make_node(gpus=1)))
    [part] = parts_of(attempt)
    run(part)
    Attempt.objects.filter(pk=attempt.pk).update(started_at=timezone.now() - timedelta(seconds=seconds))
    lifecycle.stop_attempt(attempt, "preempted")
    exit(part, None, "stopped")


@pytest.mark.parametrize(("resumable", "left"), [(True, 30), (False, 100)])
def test_the_time_limit_counts_what_a_job_ran_that_goes_on_but_not_its_waiting(
    project: Project, resumable: bool, left: int
) -> None:
    job = make_job(project, time_limit_seconds=100, resumable=resumable)
    preempted(job, 40)
    preempted(job, 30)
    node = make_node(gpus=1)
    [part] = parts_of(place(job, gpus(node)))
    run(part)
    sweep(after(seconds=left - 3), node)
    part.refresh_from_db()
    assert part.wanted == "run"
    sweep(after(seconds=left + 3), node)
    part.refresh_from_db()
    assert part.stop_reason == "timed_out"


@pytest.mark.parametrize(
    ("resumable", "then"), [(True, "restarts from its checkpoint"), (False, "restarts from the beginning")]
)
def test_a_preempted_jobs_history_shows_why_and_what_follows(project: Project, resumable: bool, then: str) -> None:
    job = make_job(project, resumable=resumable)
    preempted(job, 10)
    history = " ".join(event.sentence for event in job.events.all())
    assert f"asked to stop: to make room for others; it {then} later." in history
    assert ("The job is queued again, to restart from its checkpoint." in history) is resumable
    assert state_of(job) == "QUEUED"
    assert then in job.attempts.get().explanation["advice"]


def test_the_time_limit_counts_from_the_start_of_the_attempt(project: Project) -> None:
    node = make_node(gpus=1)
    job = make_job(project, time_limit_seconds=100, retries=3)
    attempt = place(job, gpus(node))
    [part] = parts_of(attempt)
    sweep(after(seconds=200), node)
    part.refresh_from_db()
    assert part.wanted == "run"
    run(part)
    sweep(after(seconds=99), node)
    part.refresh_from_db()
    assert part.wanted == "run"
    sweep(after(seconds=101), node)
    part.refresh_from_db()
    assert part.stop_reason == "timed_out"
    exit(part, None, "stopped")
    attempt.refresh_from_db()
    assert (state_of(job), attempt.outcome, attempt.cause["code"]) == ("FAILED", "timed_out", "time_limit")


def test_time_in_which_its_node_was_not_heard_of_does_not_count_against_the_limit(project: Project) -> None:
    node = make_node(gpus=1)
    job = make_job(project, time_limit_seconds=60)
    [part] = parts_of(place(job, gpus(node)))
    run(part)
    keep_alive(node, at=after(seconds=50))
    lifecycle.sweep(after(seconds=50 + FENCED - 1))
    part.refresh_from_db()
    assert part.wanted == "run"
    exit(part, None, "fenced")
    assert state_of(job) == "QUEUED"


def test_draining_a_node_restarts_what_needs_it_and_shrinks_what_does_not(project: Project) -> None:
    first, second = make_node(gpus=2), make_node(gpus=2)
    plain, elastic = make_job(project), make_job(project, elastic=True, max_gpus=2)
    [part] = parts_of(place(plain, gpus(second)[:1]))
    attempt = place(elastic, gpus(first)[:1], driver=True)
    more = add_host(attempt, 5, second, gpus(second)[1:])
    Node.objects.filter(pk=second.pk).update(draining=True)
    sweep(after(seconds=1), first, second)
    part.refresh_from_db()
    more.refresh_from_db()
    attempt.refresh_from_db()
    assert (part.stop_reason, more.stop_reason, attempt.wanted) == ("drained", "drained", "run")
    exit(part, None, "stopped")
    assert state_of(plain) == "QUEUED"


@pytest.mark.parametrize(("state", "seconds"), [("ASSIGNED", 301), ("PREPARING", 1801)])
def test_a_container_that_does_not_get_on_is_given_up(project: Project, state: str, seconds: int) -> None:
    node = make_node(gpus=1)
    job = make_job(project)
    attempt = place(job, gpus(node))
    [part] = parts_of(attempt)
    if state == "PREPARING":
        lifecycle.advance(part, state)
    sweep(after(seconds=seconds - 10), node)
    part.refresh_from_db()
    assert part.wanted == "run"
    sweep(after(seconds=seconds), node)
    part.refresh_from_db()
    assert part.stop_reason == "stuck"
    exit(part, None, "stopped")
    attempt.refresh_from_db()
    assert (attempt.outcome, state_of(job)) == ("error", "QUEUED")


def test_an_elastic_attempt_gives_up_only_the_part_that_does_not_get_on(project: Project) -> None:
    first, second = make_node(gpus=1), make_node(gpus=1)
    attempt = place(make_job(project, elastic=True, max_gpus=2), gpus(first, second), driver=True)
    base, more, driver = parts_of(attempt)
    run(base)
    run(driver)
    Container.objects.filter(pk__in=[base.pk, driver.pk]).update(state_since=after(hours=-3))  # at work for long
    sweep(after(seconds=301), first, second)
    for row in (attempt, base, more, driver):
        row.refresh_from_db()
    assert (more.wanted, more.stop_reason) == ("stop", "stuck")
    assert [row.wanted for row in (attempt, base, driver)] == ["run"] * 3


def test_what_will_not_stop_is_ended_once_its_lease_has_run_out(project: Project) -> None:
    node = make_node(gpus=1)
    job = make_job(project)
    [part] = parts_of(place(job, gpus(node)))
    run(part)
    services.cancel(project.created_by, job)
    sweep(after(seconds=STOP_SECONDS + FENCED - 5), node)
    assert state_of(job) == "RUNNING"
    sweep(after(seconds=STOP_SECONDS + FENCED + 5), node)
    assert state_of(job) == "CANCELLED"


def test_a_driver_that_does_not_notice_that_its_ranks_are_gone_is_stopped(project: Project) -> None:
    node = make_node(gpus=1)
    job = make_job(project, retries=0)
    host, driver = parts_of(place(job, gpus(node), driver=True))
    run(driver)
    exit(host, 1)
    sweep(after(seconds=59), node)
    driver.refresh_from_db()
    assert driver.wanted == "run"
    sweep(after(seconds=61), node)
    driver.refresh_from_db()
    assert driver.stop_reason == "peer_lost"
    exit(driver, None, "stopped")
    assert state_of(job) == "FAILED"


def test_an_attempt_without_containers_does_not_stay(project: Project) -> None:
    job = make_job(project)
    lifecycle.start_attempt(job, "fifo v1")
    lifecycle.sweep(after(seconds=30))
    assert state_of(job) == "RUNNING"
    lifecycle.sweep(after(seconds=61))
    assert state_of(job) == "QUEUED"


def test_a_cancel_that_reached_no_container_is_made_good(project: Project) -> None:
    """This is the state after a crash between the request and its consequences."""
    node = make_node(gpus=1)
    job = make_job(project)
    [part] = parts_of(place(job, gpus(node)))
    Job.objects.filter(pk=job.pk).update(intent="cancel")
    sweep(after(seconds=1), node)
    part.refresh_from_db()
    assert part.stop_reason == "cancelled"


def test_sweeping_costs_the_same_few_queries_however_many_run(project: Project, django_assert_num_queries: Any) -> None:
    node = make_node(gpus=20)
    with django_assert_num_queries(1):
        lifecycle.sweep()
    for gpu in gpus(node):
        place(make_job(project), [gpu])
    with django_assert_num_queries(2):
        lifecycle.sweep()
