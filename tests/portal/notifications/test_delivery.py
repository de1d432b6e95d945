"""How the outbox is emptied: claims, attempts with pauses, what is given up, and what comes together."""

import json
from datetime import datetime, time, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError
from django.utils import timezone

from portal import sandbox
from portal.accounts.mails import PasswordReset
from portal.accounts.models import User
from portal.jobs.models import Job
from portal.notifications import delivery, kinds, mail, outbox, services
from portal.notifications.delivery import LEASE, PAUSES
from portal.notifications.messages import JobSucceeded
from portal.notifications.models import Channel, Delivery, MailStatus, Notice, Preferences
from portal.notifications.sending import Outcome, WebhookRequest, new_secret, send
from portal.projects.models import Membership, Project
from portal.refused import Refused
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
        services.deliver_again(alice, row)
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


class TestMishaps:
    """Whatever one message does, the others of its batch are sent once, and their outcomes are recorded."""

    def test_a_sender_that_raises_for_one_message(self, alice: User, job: Job, webhook: Channel) -> None:
        happens(job)
        receiver = Receiver()

        def sender(message: object) -> Outcome:
            if isinstance(message, WebhookRequest):
                raise BlockingIOError(11, "Resource temporarily unavailable")
            return receiver(message)  # type: ignore[arg-type]

        now = timezone.now()
        for _ in (*PAUSES, 0):
            deliver(now, sender)
            now += timedelta(hours=3)
        assert len(receiver.mails) == 1
        hook = Delivery.objects.get(channel=webhook)
        assert (hook.status, hook.attempts) == (Status.GAVE_UP, len(PAUSES) + 1) and "log of the worker" in hook.error

    def test_an_outcome_that_cannot_be_recorded(
        self, alice: User, job: Job, webhook: Channel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        happens(job)
        recorded = delivery.record

        def record(claimed: Any, *args: Any, by_mail: bool) -> None:
            if not by_mail:
                raise OperationalError("database is locked")
            recorded(claimed, *args, by_mail=by_mail)

        monkeypatch.setattr(delivery, "record", record)
        receiver, now = Receiver(), timezone.now()
        for _ in range(len(PAUSES) + 3):
            deliver(now, receiver)
            now += LEASE + timedelta(seconds=1)
        assert len(receiver.mails) == 1 and len(receiver.requests) == len(PAUSES) + 1
        assert Delivery.objects.get(channel=webhook).status == Status.GAVE_UP

    @pytest.mark.parametrize("error", [MemoryError(), BlockingIOError(11, "EAGAIN"), ValueError("no JSON")])
    def test_a_program_that_cannot_be_started_is_an_outcome(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def run(*args: Any, **named: Any) -> Any:
            raise error

        monkeypatch.setattr(sandbox, "run", run)
        found = send(WebhookRequest(uuid4(), HOOK, new_secret(), "{}", ()))
        assert not found.sent and not found.final and type(error).__name__ in found.error

    def test_a_mail_backend_that_is_not_set_up_is_named_to_admins(
        self, alice: User, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def send_mail(message: object) -> None:
            raise TypeError("expected str, bytes or os.PathLike object, not NoneType")

        monkeypatch.setattr(mail, "send", send_mail)
        happens(job)
        deliver()
        assert "TypeError" in MailStatus.objects.get().last_error and Delivery.objects.get().attempts == 1

    def test_what_has_not_begun_in_time_is_left_to_the_next_batch(
        self, alice: User, job: Job, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(delivery, "BEGIN_SECONDS", -1)
        happens(job)
        delivery.tick(sender=receiver)
        row = Delivery.objects.get()
        assert not receiver.messages and (row.attempts, row.claim, row.status) == (0, None, Status.WAITING)


class TestTurns:
    """Whatever waits at one place, the others do not wait behind it."""

    def backlog(self, user: User, count: int, channels: int = 1) -> list[Channel]:
        made = [services.add_channel(user, "webhook", f"hook {number}", {"url": HOOK})[0] for number in range(channels)]
        long_ago = timezone.now() - timedelta(hours=1)
        content = JobSucceeded(1, "x", "y", 1).data()
        for channel in made:
            rows = [Notice(kind=kinds.ENDED, user=user, content=content, expanded_at=long_ago) for _ in range(count)]
            notices = Notice.objects.bulk_create(rows)
            Delivery.objects.bulk_create(Delivery(notice=each, channel=channel, due_at=long_ago) for each in notices)
        return made

    def test_mails_are_in_the_next_batch_those_of_accounts_first(
        self, alice: User, job: Job, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.backlog(world.make_user("eve"), 90)
        monkeypatch.setattr(delivery, "MAILS", 1)
        happens(job)
        delivery.expand()
        outbox.add_mail(PasswordReset("bob", "/accounts/reset/x/"), "bob@example.org")
        delivery.tick(sender=receiver)
        assert [each.to for each in receiver.mails] == ["bob@example.org"]
        delivery.tick(sender=receiver)
        assert [each.to for each in receiver.mails] == ["bob@example.org", "alice@example.org"]

    def test_a_channel_of_another_person_is_served_soon(
        self, alice: User, job: Job, webhook: Channel, receiver: Receiver
    ) -> None:
        for name in ("eve", "mallory"):
            self.backlog(world.make_user(name), 20, channels=services.MAX_CHANNELS)
        no_mail(alice)
        happens(job)
        for _ in range(3):
            delivery.tick(sender=receiver)
        assert Delivery.objects.get(channel=webhook).status == Status.SENT

    def test_one_person_has_half_of_the_places_at_most(self) -> None:
        eve = world.make_user("eve")
        self.backlog(eve, 5, channels=services.MAX_CHANNELS)
        claimed = delivery._claim_due(timezone.now())
        assert len(claimed) == delivery.PER_OWNER < delivery.MESSAGES

    def test_a_batch_is_chosen_with_as_many_queries_however_much_waits(self, django_assert_num_queries: Any) -> None:
        eve = world.make_user("eve")
        self.backlog(eve, 100, channels=3)
        with django_assert_num_queries(2):
            found = (*delivery._due_mails(timezone.now()), *delivery._due_messages(timezone.now()))
        assert len(found) == delivery.PER_OWNER

    def test_everything_arrives_in_the_end(self, receiver: Receiver) -> None:
        self.backlog(world.make_user("eve"), 30, channels=3)
        deliver(sender=receiver)
        assert len({each.uid for each in receiver.requests}) == 90


class TestWebhookOwners:
    """The webhook of a project or the lab of a user who may not manage it any more is paused, and the others hear of it."""

    def test_of_the_lab_when_its_admin_is_none_any_more(self, alice: User, job: Job, receiver: Receiver) -> None:
        ada, grace = (world.make_user(name, is_staff=True) for name in ("ada", "grace"))
        gone = world.make_user("gone", is_staff=True, is_active=False)
        hook, _ = services.add_webhook(ada, None, HOOK, ["job.ended"], "monitor")
        User.objects.filter(pk=ada.pk).update(is_staff=False)
        happens(job)
        happens(job)
        deliver(sender=receiver)
        hook.refresh_from_db()
        assert not receiver.requests and hook.paused_at is not None and "ada" in hook.last_error
        assert troubles(grace) == ["The webhook “monitor” of the lab is paused"]
        assert not troubles(ada) and not troubles(gone)
        assert set(hook.deliveries.values_list("status", flat=True)) == {Status.DROPPED}

    @pytest.mark.parametrize("change", ["left", "deactivated", "member"])
    def test_of_a_project_when_its_owner_is_none_any_more(
        self, alice: User, job: Job, project: Project, receiver: Receiver, change: str
    ) -> None:
        bob = world.make_user("bob")
        membership = Membership.objects.create(project=project, user=bob, role="owner")
        hook, _ = services.add_webhook(bob, project, HOOK, ["job.ended"], "ci")
        no_mail(alice)
        if change == "left":
            membership.delete()
        elif change == "member":
            Membership.objects.filter(pk=membership.pk).update(role="member")
        else:
            User.objects.filter(pk=bob.pk).update(is_active=False)
        happens(job)
        deliver(sender=receiver)
        hook.refresh_from_db()
        assert not receiver.requests and hook.paused_at is not None
        assert troubles(alice) == ["The webhook “ci” of the project digits is paused"] and not troubles(bob)

    def test_who_switches_it_on_takes_it_over(
        self, alice: User, job: Job, project: Project, receiver: Receiver
    ) -> None:
        bob = world.make_user("bob")
        Membership.objects.create(project=project, user=bob, role="owner")
        hook, _ = services.add_webhook(bob, project, HOOK, ["job.ended"], "ci")
        Membership.objects.filter(user=bob).delete()
        no_mail(alice)
        happens(job)
        deliver(sender=receiver)
        hook.refresh_from_db()
        services.resume(alice, hook)
        happens(job)
        deliver(sender=receiver)
        hook.refresh_from_db()
        assert len(receiver.requests) == 1 and hook.owner == alice and hook.paused_at is None


class TestWhatWaits:
    """What is switched off while a message waits is not sent."""

    @pytest.fixture
    def waiting(self, alice: User, job: Job) -> datetime:
        Preferences.objects.create(user=alice, digest="day")
        happens(job)
        delivery.expand()
        return timezone.now() + timedelta(days=2)

    def test_mails_of_a_kind(self, alice: User, waiting: datetime, receiver: Receiver) -> None:
        Preferences.objects.update(mail_off=[kinds.ENDED])
        deliver(waiting, receiver)
        assert not receiver.messages and Delivery.objects.get().status == Status.DROPPED

    def test_a_project(self, alice: User, project: Project, waiting: datetime, receiver: Receiver) -> None:
        services.mute(alice, project, True)
        deliver(waiting, receiver)
        assert not receiver.messages

    def test_a_kind_of_a_channel(self, alice: User, job: Job, webhook: Channel, receiver: Receiver) -> None:
        no_mail(alice)
        happens(job)
        delivery.expand()
        Channel.objects.update(off=[kinds.ENDED])
        deliver(sender=receiver)
        assert not receiver.messages


def test_sending_again_is_limited(alice: User, job: Job, webhook: Channel, receiver: Receiver) -> None:
    no_mail(alice)
    happens(job)
    deliver(sender=receiver)
    row = Delivery.objects.get()
    for _ in range(services.MAX_AGAIN):
        services.deliver_again(alice, row)
    with pytest.raises(Refused, match="Wait a little"):
        services.deliver_again(alice, row)


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
        services.resume(alice, webhook)
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
        assert [each.delivery.channel_id for each in claimed].count(webhook.pk) == delivery.PER_CHANNEL
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
        assert len(receiver.requests) == delivery.PER_CHANNEL
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
