"""How the outbox is emptied: claims, attempts with pauses, what is given up, and what comes together."""

import json
from datetime import datetime, time, timedelta

import pytest
from django.utils import timezone

from portal.accounts.models import User
from portal.jobs.models import Job
from portal.notifications import delivery, kinds, outbox, services
from portal.notifications.delivery import LEASE, PAUSES
from portal.notifications.messages import JobSucceeded
from portal.notifications.models import Channel, Delivery, MailStatus, Notice, Preferences
from portal.notifications.sending import Outcome
from portal.projects.models import Project
from portal.sentences.notices import notice_text
from tests.portal import jobs_world as world
from tests.portal.outbox import DOWN, GONE, Receiver, deliver

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
Status = Delivery.Status
HOOK = "https://hooks.example.org/x"


@pytest.fixture
def webhook(alice: User) -> Channel:
    return services.add_channel(alice, "webhook", "mine", {"url": HOOK})[0]


def happens(job: Job, name: str = "train", now: datetime | None = None) -> Notice:
    content = JobSucceeded(job.pk, name, job.project.name, 60).data()
    return Notice.objects.create(
        kind=kinds.ENDED,
        event="job.succeeded",
        user=job.submitted_by,
        project=job.project,
        content=content,
        at=now or timezone.now(),
    )


def no_mail(user: User) -> None:
    Preferences.objects.create(user=user, mail_off=list(kinds.BY_KEY))


def troubles(user: User) -> list[str]:
    return [notice_text(row.content).title for row in Notice.objects.filter(user=user, kind=kinds.TROUBLE)]


class TestAttempts:
    def test_a_mail_that_fails_comes_again_after_growing_pauses_with_the_same_id(self, alice: User, job: Job) -> None:
        happens(job)
        receiver, now = Receiver(DOWN), timezone.now()
        for pause in PAUSES:
            assert deliver(now, receiver) == 1
            assert deliver(now + pause - timedelta(seconds=1), receiver) == 0
            now += pause
        receiver.outcome = Outcome(True)
        assert deliver(now, receiver) == 1
        assert len({each.uid for each in receiver.mails}) == 1 and len(receiver.mails) == len(PAUSES) + 1
        assert Delivery.objects.get().status == Status.SENT and not troubles(alice)

    def test_it_is_given_up_with_a_notice_in_the_portal(self, alice: User, job: Job) -> None:
        happens(job)
        receiver, now = Receiver(DOWN), timezone.now()
        for pause in (*PAUSES, timedelta()):
            assert deliver(now, receiver) == 1
            now += pause
        assert deliver(now + timedelta(days=1), receiver) == 0
        row = Delivery.objects.get()
        assert (row.status, row.attempts) == (Status.GAVE_UP, len(PAUSES) + 1) and "refused" in row.error
        assert troubles(alice) == ["A mail to alice@example.org could not be sent"]
        assert "refused" in MailStatus.objects.get().last_error

    def test_an_answer_that_is_final_is_not_repeated(self, alice: User, job: Job) -> None:
        happens(job)
        assert deliver(sender=Receiver(GONE)) == 1
        assert Delivery.objects.get().status == Status.GAVE_UP

    def test_an_admin_or_owner_sends_it_again(self, alice: User, job: Job, receiver: Receiver) -> None:
        happens(job)
        deliver(sender=Receiver(GONE))
        row = Delivery.objects.get()
        services.deliver_again(row)
        deliver(sender=receiver)
        assert [each.uid for each in receiver.mails] == [row.uid]

    def test_a_message_that_cannot_be_made_does_not_keep_the_others_back(
        self, alice: User, job: Job, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bad, good = happens(job), happens(job)
        Preferences.objects.create(user=alice, mail_off=[])
        Notice.objects.filter(pk=bad.pk).update(kind=kinds.ACCOUNT, user=None, expanded_at=timezone.now())
        Delivery.objects.create(notice=bad, address="x@example.org", due_at=timezone.now())
        deliver(sender=receiver)
        assert [each.to for each in receiver.mails] == ["alice@example.org"]
        assert bad.deliveries.get().status == Status.DROPPED and good.deliveries.get().status == Status.SENT


class TestClaims:
    def test_a_delivery_is_claimed_once_at_a_time(self, alice: User, job: Job) -> None:
        happens(job)
        delivery.expand()
        now = timezone.now()
        assert len(delivery._claim_due(now)) == 1
        assert delivery._claim_due(now) == []
        [again] = delivery._claim_due(now + LEASE + timedelta(seconds=1))
        assert again.delivery.attempts == 2

    def test_who_lost_the_claim_changes_nothing(self, alice: User, job: Job) -> None:
        happens(job)
        delivery.expand()
        now = timezone.now()
        [first] = delivery._claim_due(now)
        [second] = delivery._claim_due(now + LEASE + timedelta(seconds=1))
        delivery.record(first, Outcome(False, "late", final=True), now, by_mail=True)
        assert Delivery.objects.get().status == Status.WAITING
        delivery.record(second, Outcome(True), now, by_mail=True)
        assert Delivery.objects.get().status == Status.SENT

    def test_messages_that_kill_the_worker_are_given_up(self, alice: User, job: Job) -> None:
        happens(job)
        now = timezone.now()
        delivery.expand(now)
        for _ in PAUSES:
            assert len(delivery._claim_due(now)) == 1
            now += LEASE + timedelta(seconds=1)
        deliver(now, Receiver(DOWN))
        assert Delivery.objects.get().status == Status.GAVE_UP

    def test_nothing_is_sent_within_a_transaction(self, alice: User, job: Job) -> None:
        from django.db import connection

        happens(job)
        depth = len(connection.savepoint_ids)
        depths: list[int] = []

        def sender(message: object) -> Outcome:
            depths.append(len(connection.savepoint_ids) if connection.connection else depth)
            return Outcome(True)

        deliver(sender=sender)
        assert depths == [depth]


class TestTogether:
    def test_a_sweep_makes_two_mails(self, alice: User, job: Job, receiver: Receiver) -> None:
        happens(job, "first")
        now = timezone.now()
        deliver(now, receiver)
        for number in range(60):
            happens(job, f"number {number}")
        assert deliver(now + timedelta(minutes=1), receiver) == 0
        assert deliver(now + timedelta(minutes=7), receiver) == 1
        first, second = receiver.mails
        assert "“first”" in first.subject and second.subject == "Schedulearn: 60 notices of your jobs"
        assert "“number 59”" in second.text and "- and 50 more" in second.text
        assert not Delivery.objects.exclude(status=Status.SENT).exists()
        assert deliver(now + timedelta(days=1), receiver) == 0

    def test_a_summary_that_fails_is_repeated_with_the_same_notices(self, alice: User, job: Job) -> None:
        happens(job, "one")
        happens(job, "two")
        receiver, now = Receiver(DOWN), timezone.now()
        deliver(now, receiver)
        happens(job, "three")
        receiver.outcome = Outcome(True)
        deliver(now + PAUSES[0], receiver)
        first, *later = receiver.mails
        [again] = [each for each in later if each.uid == first.uid]
        assert again.text == first.text and "three" not in again.text

    def test_quiet_hours_collect_what_happens(self, alice: User, job: Job, receiver: Receiver) -> None:
        Preferences.objects.create(user=alice, quiet_from=time(22), quiet_until=time(7), zone="Europe/Berlin")
        night = datetime.fromisoformat("2026-07-01T22:00:00+00:00")
        for _ in range(3):
            happens(job, now=night)
        assert deliver(night, receiver) == 0
        assert deliver(datetime.fromisoformat("2026-07-02T05:00:00+00:00"), receiver) == 1
        assert receiver.mails[0].subject == "Schedulearn: 3 notices of your jobs"

    def test_programs_get_each_notice_at_once(
        self, alice: User, job: Job, webhook: Channel, receiver: Receiver
    ) -> None:
        Preferences.objects.create(
            user=alice, mail_off=list(kinds.BY_KEY), digest="day", quiet_from=time(0), quiet_until=time(23, 59)
        )
        for _ in range(3):
            happens(job)
        deliver(sender=receiver)
        assert len({each.uid for each in receiver.requests}) == 3
        body = json.loads(receiver.requests[0].body)
        assert body["event"] == "job.succeeded" and body["id"] == str(receiver.requests[0].uid)


class TestChannels:
    def test_a_channel_that_fails_again_and_again_is_paused(self, alice: User, job: Job, webhook: Channel) -> None:
        no_mail(alice)
        happens(job)
        receiver, now = Receiver(DOWN), timezone.now()
        for pause in (*PAUSES, timedelta()):
            deliver(now, receiver)
            now += pause
        webhook.refresh_from_db()
        assert webhook.paused_at is not None and "refused" in webhook.last_error
        assert troubles(alice) == ["The channel “mine” is paused"]
        happens(job)
        assert deliver(now, receiver) == 0
        services.resume(webhook)
        happens(job)
        receiver.outcome = Outcome(True)
        assert deliver(now, receiver) == 1

    def test_a_slow_receiver_does_not_take_all_places(self, alice: User, job: Job, webhook: Channel) -> None:
        no_mail(alice)
        for _ in range(10):
            happens(job)
        outbox.add_mail(JobSucceeded(1, "x", "y", 1), "bob@example.org")
        delivery.expand()
        claimed = delivery._claim_due(timezone.now())
        assert [each.delivery.channel_id for each in claimed].count(webhook.pk) == delivery.AT_ONCE
        assert any(each.delivery.address for each in claimed)

    def test_what_waits_behind_a_failure_is_not_attempted_before_it(
        self, alice: User, job: Job, webhook: Channel
    ) -> None:
        no_mail(alice)
        receiver = Receiver(DOWN)
        for _ in range(10):
            happens(job)
        now = timezone.now()
        deliver(now, receiver)
        assert len(receiver.requests) == delivery.AT_ONCE
        assert deliver(now + timedelta(seconds=20), receiver) == 0

    def test_a_project_webhook_gets_the_events_that_it_wants_once(
        self, alice: User, project: Project, receiver: Receiver
    ) -> None:
        no_mail(alice)
        hook, _ = services.add_webhook(alice, project, HOOK, ["job.submitted", "job.ended", "job.failed"])
        other = world.make_project(alice, "other")
        services.add_webhook(alice, other, HOOK, ["job.submitted"])
        job = world.make_job(project)
        node = world.make_node(gpus=1)
        part = world.place(job, list(node.gpus.all())).containers.get()
        world.run(part)
        world.exit(part, 1)
        deliver(timezone.now() + timedelta(minutes=1), receiver)
        assert [json.loads(each.body)["event"] for each in receiver.requests] == ["job.failed"]
        body = json.loads(receiver.requests[0].body)
        assert body["job"]["id"] == job.pk and body["url"] == f"https://lab.example.org/jobs/{job.pk}/"
        assert "log" not in body
        assert hook.deliveries.get().event == "job.failed"


def test_old_rows_are_deleted_and_those_that_wait_stay(alice: User, job: Job) -> None:
    from portal.notifications.tasks import tidy

    long_ago = timezone.now() - timedelta(days=200)
    old, waiting, recent = happens(job), happens(job), happens(job)
    deliver()
    Notice.objects.filter(pk__in=[old.pk, waiting.pk]).update(at=long_ago)
    Delivery.objects.update(closed_at=long_ago)
    Delivery.objects.filter(notice=waiting).update(status=Status.WAITING, lead=None)
    tidy()
    assert set(Notice.objects.filter(kind=kinds.ENDED).values_list("pk", flat=True)) == {waiting.pk, recent.pk}
