"""Requests for more time: who may ask, what a rule grants, and what a decision changes."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from portal.accounts.models import AuditEntry, LabSettings
from portal.jobs import lifecycle
from portal.jobs import services as jobs
from portal.jobs.models import Attempt, Job, JobState, StopReason, TimeExtension
from portal.jobs.time_extensions import services
from portal.jobs.time_extensions.attention import open_time_extensions
from portal.jobs.time_extensions.services import HOUR
from portal.notifications import kinds
from portal.notifications.models import Notice
from portal.refused import Refused
from portal.sentences.notices import notice_text
from tests.laws.people import World, make_world
from tests.portal.control_world import queue, ready_node, run_agents, turn
from tests.portal.outbox import deliver

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def world() -> World:
    return make_world()


def rule(hours: int) -> None:
    LabSettings.objects.update_or_create(pk=LabSettings.ONLY, defaults={"hours_granted_by_rule": hours})


def limit(job: Job) -> int:
    return Job.objects.get(pk=job.pk).time_limit_seconds


def lines(job: Job) -> list[str]:
    return [row.sentence for row in job.events.order_by("seq") if row.kind.startswith("time_")]


def titles(user: Any) -> list[str]:
    deliver()
    return [notice_text(row.content).title for row in Notice.objects.filter(user=user, shown=True).order_by("pk")]


def test_its_notices_are_of_known_kinds_that_fit_into_their_column() -> None:
    """SQLite stores keys of any length."""
    ours = {services.NOTICE_KIND: False, services.ADMINS_NOTICE_KIND: True}
    assert {key: kinds.BY_KEY[key].for_admins for key in ours} == ours
    room = Notice._meta.get_field("kind").max_length
    assert room is not None and all(len(key) <= room for key in kinds.BY_KEY)


class TestAsking:
    def test_an_admin_decides_unless_a_rule_grants_it(self, world: World) -> None:
        row = services.ask(world.alice, world.running, 2 * HOUR, " one epoch is missing ")
        assert (row.status, row.reason, row.by_rule, row.decided_at) == ("asked", "one epoch is missing", False, None)
        assert limit(world.running) == HOUR
        assert lines(world.running) == ["alice asked for 2 h more: “one epoch is missing”"]
        assert titles(world.ada) == [f"alice asks for 2 h more for job {world.running.pk} “{world.running.name}”"]
        assert not titles(world.alice)

    def test_a_rule_grants_so_many_hours_in_total_of_each_job(self, world: World) -> None:
        rule(3)
        first = services.ask(world.alice, world.running, 2 * HOUR)
        assert (first.status, first.by_rule, first.decided_by) == ("granted", True, None) and first.decided_at
        assert limit(world.running) == 3 * HOUR and services.seconds_left_of_rule(world.running) == HOUR
        assert "granted by the rule of the lab, as alice asked: the time limit is 3 h" in lines(world.running)[0]
        second = services.ask(world.alice, world.running, 2 * HOUR)
        assert second.status == "asked" and limit(world.running) == 3 * HOUR
        services.withdraw(world.alice, second)
        assert services.ask(world.alice, world.running, HOUR).status == "granted"
        assert limit(world.running) == 4 * HOUR

    def test_what_an_admin_granted_does_not_use_up_the_rule(self, world: World) -> None:
        services.grant(world.ada, services.ask(world.alice, world.running, 5 * HOUR))
        rule(1)
        assert services.ask(world.alice, world.running, HOUR).by_rule
        assert limit(world.running) == 7 * HOUR

    @pytest.mark.parametrize("role", ["bob", "victor", "charlie"])
    def test_only_who_may_act_on_the_job_may_ask(self, world: World, role: str) -> None:
        with pytest.raises(Refused, match="Only the user who submitted"):
            services.ask(world.users[role], world.running, HOUR)

    def test_one_request_at_a_time_and_again_after_a_refusal(self, world: World) -> None:
        first = services.ask(world.alice, world.running, HOUR)
        with pytest.raises(Refused, match="Withdraw it to make another") as refused:
            services.ask(world.ada, world.running, HOUR)
        assert refused.value.code == "conflict"
        services.refuse(world.ada, first)
        assert services.ask(world.alice, world.running, HOUR).status == "asked"

    def test_beyond_the_maximum_of_the_lab_the_possible_is_named(self, world: World) -> None:
        Job.objects.filter(pk=world.running.pk).update(time_limit_seconds=29 * 24 * HOUR)
        with pytest.raises(Refused, match=r"at most 30 d.* and this job has 29 d.*: ask for at most 1 d.* more"):
            services.ask(world.alice, world.running, 25 * HOUR)
        rule(720)
        assert services.ask(world.alice, world.running, 24 * HOUR).status == "granted"
        with pytest.raises(Refused, match="has the longest time limit that the lab allows"):
            services.ask(world.alice, world.running, HOUR)

    @pytest.mark.parametrize(
        ("state", "match"),
        [
            ("SUCCEEDED", "has succeeded"),
            ("FAILED", "has failed"),
            ("CANCELLED", "was cancelled"),
            ("QUEUED", "not run yet"),
            ("HELD", "not run yet"),
        ],
    )
    def test_only_for_a_job_that_has_run_and_goes_on(self, world: World, state: str, match: str) -> None:
        assert not services.may_ask_for(world.jobs[state])
        with pytest.raises(Refused, match=match):
            services.ask(world.alice, world.jobs[state], HOUR)

    def test_a_job_that_waits_again_may_ask(self, world: World) -> None:
        began = timezone.now() - timedelta(hours=1)
        Job.objects.filter(pk=world.jobs["QUEUED"].pk).update(started_at=began)
        assert services.ask(world.alice, Job.objects.get(pk=world.jobs["QUEUED"].pk), HOUR).status == "asked"

    def test_not_once_it_is_stopped_for_its_time_limit(self, world: World) -> None:
        row = services.ask(world.alice, world.running, HOUR)
        lifecycle.stop_attempt(Attempt.objects.get(job=world.running), StopReason.TIMED_OUT)
        with pytest.raises(Refused, match="has reached its time limit"):
            services.grant(world.ada, row)
        assert limit(world.running) == HOUR

    def test_texts_that_no_database_stores_are_refused(self, world: World) -> None:
        for text, match in (("a\0b", "cannot be stored"), ("x" * 1001, "At most 1,000")):
            with pytest.raises(Refused, match=match):
                services.ask(world.alice, world.running, HOUR, text)


class TestDeciding:
    def test_a_grant_raises_the_limit_once_and_is_recorded(self, world: World) -> None:
        row = services.ask(world.alice, world.running, 2 * HOUR)
        for _ in range(2):  # a double click
            granted = services.grant(world.ada, row, "Good luck")
        assert (granted.status, granted.decided_by, granted.answer) == ("granted", world.ada, "Good luck")
        assert limit(world.running) == 3 * HOUR
        assert lines(world.running)[1:] == ["2 h more granted by ada: the time limit is 3 h now."]
        entry = AuditEntry.objects.get(action="job.time_granted")
        assert (entry.actor, entry.target) == (world.ada, f"job {world.running.pk}")
        assert (entry.before, entry.after) == ({"time_limit_seconds": HOUR}, {"time_limit_seconds": 3 * HOUR})
        assert titles(world.alice) == [f"Job {world.running.pk} “{world.running.name}”: 2 h more granted"]

    def test_a_refusal_leaves_the_limit_and_names_the_answer(self, world: World) -> None:
        row = services.ask(world.alice, world.running, HOUR)
        for _ in range(2):
            refused = services.refuse(world.ada, row, "Not this week")
        assert refused.status == "refused" and limit(world.running) == HOUR
        assert lines(world.running)[1:] == ["1 h more refused by ada: “Not this week”"]
        assert AuditEntry.objects.get(action="job.time_refused").after == {"seconds": HOUR}
        assert titles(world.alice) == [f"Job {world.running.pk} “{world.running.name}”: 1 h more refused"]

    def test_a_decision_is_not_reversed(self, world: World) -> None:
        row = services.ask(world.alice, world.running, HOUR)
        services.refuse(world.ada, row)
        with pytest.raises(Refused, match="was refused by ada in the meantime"):
            services.grant(world.ada, row)
        with pytest.raises(Refused, match="was refused by ada"):
            services.withdraw(world.alice, row)
        assert limit(world.running) == HOUR

    def test_a_withdrawn_request_cannot_be_granted(self, world: World) -> None:
        row = services.ask(world.alice, world.running, HOUR)
        services.withdraw(world.alice, row)
        services.withdraw(world.alice, row)
        assert lines(world.running)[1:] == ["The request for 1 h more was withdrawn by alice."]
        with pytest.raises(Refused, match="was withdrawn in the meantime"):
            services.grant(world.ada, row)

    @pytest.mark.parametrize("role", ["charlie", "victor", "bob", "alice"])
    def test_only_admins_decide(self, world: World, role: str) -> None:
        row = services.ask(world.alice, world.running, HOUR)
        for act in (services.grant, services.refuse):
            with pytest.raises(Refused, match="Only admins"):
                act(world.users[role], row)

    def test_a_job_that_has_ended_gets_no_more_and_its_request_is_not_open(self, world: World) -> None:
        row = services.ask(world.alice, world.running, HOUR)
        now = timezone.now()
        Attempt.objects.filter(job=world.running).update(ended_at=now, outcome="succeeded")
        Job.objects.filter(pk=world.running.pk).update(state=JobState.SUCCEEDED, finished_at=now)
        with pytest.raises(Refused, match="has succeeded"):
            services.grant(world.ada, row)
        row = TimeExtension.objects.get()
        assert not TimeExtension.objects.open() and not list(open_time_extensions())
        assert row.status_words == "not decided before the job ended"

    def test_a_cancelled_job_gets_no_more(self, world: World) -> None:
        row = services.ask(world.alice, world.running, HOUR)
        jobs.cancel(world.alice, world.running)
        with pytest.raises(Refused, match="cancel"):
            services.grant(world.ada, row)
        assert limit(world.running) == HOUR

    def test_who_left_the_project_is_not_notified(self, world: World) -> None:
        row = services.ask(world.alice, world.running, HOUR)
        world.project.memberships.filter(user=world.alice).delete()
        services.grant(world.ada, row)
        assert not titles(world.alice)

    def test_the_admin_overview_names_the_oldest(self, world: World) -> None:
        services.ask(world.alice, world.running, HOUR, "paper")
        [item] = open_time_extensions()
        assert (item.text, item.detail) == (
            f"alice asks for 1 h more for {world.running.name} #{world.running.pk}",
            "paper",
        )


def test_a_raised_limit_holds_for_an_attempt_that_runs() -> None:
    """The sweep reads the job's limit, so that agents need not know it: also those of the release before."""
    ready_node("a", 1)
    job = queue(1, time_limit_seconds=HOUR)
    turn()
    run_agents()
    Attempt.objects.update(started_at=timezone.now() - timedelta(minutes=90))
    rule(1)
    services.ask(job.submitted_by, job, HOUR)
    lifecycle.sweep()
    assert Attempt.objects.get().wanted == Attempt.Wanted.RUN
    Attempt.objects.update(started_at=timezone.now() - timedelta(minutes=121))
    lifecycle.sweep()
    assert Attempt.objects.get().stop_reason == StopReason.TIMED_OUT
