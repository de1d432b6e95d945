"""Which events become notices, what these say, and who gets them where."""

from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.db import transaction
from django.utils import timezone

from portal.accounts import outbox as requests
from portal.accounts import services as accounts
from portal.accounts.models import User
from portal.jobs import events, lifecycle, logs, services
from portal.jobs.models import Container, Job, StopReason
from portal.monitoring.events import GpusIdle
from portal.notifications import delivery, kinds
from portal.notifications.models import (
    Delivery,
    MutedProject,
    Notice,
    NotificationSettings,
    Preferences,
    PrivateProject,
)
from portal.notifications.services import unread_count
from portal.projects.models import Membership, Project
from portal.sentences.notices import notice_text
from tests.portal import jobs_world as world
from tests.portal.outbox import Receiver, deliver

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


def end(job: Job, code: int = 0, text: str = "") -> None:
    container = Container.objects.get(attempt__job=job)
    if text:
        stream = logs.open_stream(container, "0", "rank 0")
        logs.append(stream, 0, text.encode())
    world.exit(container, code)
    lifecycle.record_collected(Container.objects.get(pk=container.pk))


def titles(user: User) -> list[str]:
    return [notice_text(row.content).title for row in Notice.objects.filter(user=user, shown=True).order_by("pk")]


def test_a_job_that_succeeds_is_a_notice_and_a_mail(alice: User, job: Job) -> None:
    end(job)
    deliver()
    assert titles(alice) == [f"Job {job.pk} “train” succeeded"]
    [sent] = mail.outbox
    assert sent.to == ["alice@example.org"] and sent.subject == f"Schedulearn: Job {job.pk} “train” succeeded"
    assert f"https://lab.example.org/jobs/{job.pk}/" in sent.body
    deliver()
    assert len(mail.outbox) == 1 and unread_count(alice) == 1


def test_a_failure_comes_with_its_cause_and_its_last_lines(alice: User, job: Job) -> None:
    end(job, 1, "step 1\nValueError: bad shape\n")
    deliver()
    [sent] = mail.outbox
    assert "failed" in sent.subject and "step 1\n    ValueError: bad shape" in sent.body


@pytest.mark.parametrize("decides", ["project", "lab"])
def test_nothing_of_a_log_leaves_the_portal_where_that_was_decided(alice: User, job: Job, decides: str) -> None:
    if decides == "project":
        PrivateProject.objects.create(project=job.project)
    else:
        NotificationSettings.objects.create(pk=1, log_lines_leave=False)
    end(job, 1, "step 1\nValueError: bad shape\n")
    deliver()
    [sent] = mail.outbox
    assert "shape" not in f"{sent.subject} {sent.body}" and "step 1" not in sent.body
    assert sent.subject == f"Schedulearn: Job {job.pk} “train” failed"


def test_a_failure_waits_a_little_for_the_rest_of_the_log(alice: User, job: Job) -> None:
    world.exit(Container.objects.get(attempt__job=job), 1)
    assert deliver() == 0
    assert deliver(timezone.now() + timedelta(seconds=30)) == 1


def test_an_attempt_that_is_retried_is_no_failure(alice: User, job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(retries=2)
    end(job, 1)
    deliver(timezone.now() + timedelta(minutes=1))
    assert titles(alice) == []


def test_a_preemption_states_that_the_job_restarts(alice: User, job: Job) -> None:
    lifecycle.stop_attempt(job.attempts.get(), StopReason.PREEMPTED)
    deliver()
    assert titles(alice) == [f"Job {job.pk} “train” was stopped to restart later"]
    assert "to make room for others" in mail.outbox[0].body


def test_the_end_of_a_long_wait_is_a_notice_and_that_of_a_short_one_is_not(alice: User, project: Project) -> None:
    node = world.make_node(gpus=2)
    now = timezone.now()
    for gpu, minutes in zip(node.gpus.all(), (5, 45), strict=True):
        job = world.make_job(project, submitted_at=now - timedelta(minutes=minutes), name=f"after {minutes}")
        world.run(world.place(job, [gpu]).containers.get())
    deliver()
    assert titles(alice) == [f"Job {job.pk} “after 45” has started"]
    assert "It waited 45 min" in mail.outbox[0].body


def test_idle_gpus_are_a_notice(alice: User, job: Job) -> None:
    lifecycle.record(job, GpusIdle(1, 5, 1800, False))
    deliver()
    assert titles(alice) == [f"Job {job.pk} “train” has idle GPUs"]


def test_who_cancels_a_job_hears_nothing_and_its_owner_who_did_it(alice: User, project: Project) -> None:
    ada = world.make_user("ada", is_staff=True)
    mine, theirs = world.make_job(project), world.make_job(project)
    services.cancel(alice, mine)
    services.cancel(ada, theirs)
    deliver()
    assert titles(alice) == [f"Job {theirs.pk} “train” was cancelled by ada"]


def test_a_notice_is_undone_with_the_event(alice: User, job: Job) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        end(job)
        raise RuntimeError
    assert not Notice.objects.exists()


@pytest.mark.parametrize("reason", ["muted", "left", "off", "deactivated"])
def test_who_does_not_want_it_or_may_not_see_it_gets_nothing(alice: User, job: Job, reason: str) -> None:
    if reason == "muted":
        MutedProject.objects.create(user=alice, project=job.project)
    elif reason == "left":
        Membership.objects.all().delete()
    elif reason == "off":
        Preferences.objects.create(user=alice, portal_off=[kinds.ENDED], mail_off=[kinds.ENDED])
    else:
        User.objects.update(is_active=False)
    end(job)
    assert deliver() == 0 and titles(alice) == []
    assert not Delivery.objects.exists()


def test_who_leaves_the_project_while_a_mail_waits_does_not_get_it(alice: User, job: Job, receiver: Receiver) -> None:
    end(job)
    delivery.expand()
    Membership.objects.all().delete()
    deliver(sender=receiver)
    assert not receiver.messages
    assert Delivery.objects.get().status == Delivery.Status.DROPPED


def test_a_kind_is_switched_off_for_mail_alone(alice: User, job: Job) -> None:
    Preferences.objects.create(user=alice, mail_off=[kinds.ENDED])
    end(job)
    assert deliver() == 0 and len(titles(alice)) == 1


def test_without_mail_nothing_is_mailed_but_links_of_accounts(
    alice: User, job: Job, settings: Any, receiver: Receiver
) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
    ada = world.make_user("ada", is_staff=True)
    end(job)
    accounts.create_invite(ada, email="new@example.org")
    deliver(sender=receiver)
    assert [each.to for each in receiver.mails] == ["new@example.org"]
    assert len(titles(alice)) == 1


def test_a_demo_sends_nothing_but_shows_notices(alice: User, job: Job, settings: Any, receiver: Receiver) -> None:
    settings.DEMO = True
    end(job)
    assert deliver(sender=receiver) == 0 and len(titles(alice)) == 1


def test_an_invitation_is_mailed_and_its_link_is_stored_nowhere_after_that(alice: User) -> None:
    _, token = accounts.create_invite(alice, email="new@example.org")
    row = Notice.objects.get()
    assert row.sealed_mail and token not in str(row.content) + row.sealed_mail
    deliver()
    [sent] = mail.outbox
    assert sent.to == ["new@example.org"] and f"https://lab.example.org/accounts/invite/{token}/" in sent.body
    row.refresh_from_db()
    assert row.sealed_mail == ""


def test_mail_names_how_to_stop_it_and_the_same_id_each_time(alice: User, job: Job, receiver: Receiver) -> None:
    end(job)
    deliver(sender=receiver)
    [sent] = receiver.mails
    assert sent.uid == Delivery.objects.get().uid
    assert sent.headers["List-Unsubscribe"].startswith("<https://lab.example.org/notifications/unsubscribe/")
    assert sent.headers["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"


def test_alarms_go_to_admins_only(alice: User) -> None:
    ada = world.make_user("ada", is_staff=True, email="ada@example.org")
    message = events.Submitted("x")
    requests.notify([alice, ada], kinds.ALARM, message, "/admin/")
    deliver()
    assert [sent.to for sent in mail.outbox] == [["ada@example.org"]]
    assert titles(alice) == [] and len(titles(ada)) == 1


def test_a_name_with_line_breaks_and_braces_stays_one_subject(alice: User, job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(name="a\nBcc: x@example.org {title}")
    end(job)
    deliver()
    assert mail.outbox[0].subject == f"Schedulearn: Job {job.pk} “a Bcc: x@example.org {{title}}” succeeded"
