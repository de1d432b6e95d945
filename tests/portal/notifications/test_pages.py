"""The pages: the bell and its list, what a person chooses, links in mails, a project's webhooks, and the admin's."""

from datetime import time, timedelta
from typing import Any

import pytest
from django.core import mail
from django.test import Client
from django.utils import timezone

from portal import stale_forms
from portal.accounts.models import User
from portal.jobs.models import Job
from portal.notifications import checks, kinds, services, unsubscribe
from portal.notifications.forms import PreferencesForm
from portal.notifications.messages import JobSucceeded
from portal.notifications.models import (
    Channel,
    Delivery,
    MailStatus,
    MailTemplate,
    MutedProject,
    Notice,
    NotificationSettings,
    Preferences,
    PrivateProject,
)
from portal.projects.models import Project
from tests.portal import jobs_world as world
from tests.portal.outbox import GONE, Receiver, deliver
from tests.portal.pages import compact

pytestmark = pytest.mark.django_db
HOOK = "https://hooks.example.org/x"
DEFAULTS = {"digest": "soon", "digest_at": "08:00", "zone": "Europe/Berlin"}
ALL = [kind.key for kind in kinds.kinds_for(False)]


def browser(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def show(user: User, job: Job, count: int = 1) -> list[Notice]:
    content = JobSucceeded(job.pk, "train", job.project.name, 60).data()
    rows = [
        Notice(
            kind=kinds.ENDED,
            user=user,
            job=job,
            content=content,
            path=f"/jobs/{job.pk}/",
            shown=True,
            expanded_at=timezone.now(),
        )
        for _ in range(count)
    ]
    return Notice.objects.bulk_create(rows)


class TestBell:
    def test_it_counts_what_is_unread_and_the_list_marks_it(self, alice: User, job: Job) -> None:
        show(alice, job, 3)
        client = browser(alice)
        assert compact(client.get("/").content.decode()).count("data-unread>3</span>") == 1
        assert client.get("/notices/unread").json()["unread"] == 3
        assert client.get("/notices/").content.decode().count("succeeded</a>") == 3
        client.post("/notices/read")
        assert client.get("/notices/unread").json() == {"unread": 0, "newest": [], "quiet": False}

    def test_opening_a_notice_reads_it_and_goes_to_its_page(self, alice: User, job: Job) -> None:
        [row, other] = show(alice, job, 2)
        assert browser(alice).get(f"/notices/{row.pk}/open")["Location"] == f"/jobs/{job.pk}/"
        assert services.unread_count(alice) == 1
        bob = world.make_user("bob")
        assert browser(bob).get(f"/notices/{other.pk}/open").status_code == 404

    def test_the_list_has_pages_and_few_queries(
        self, alice: User, job: Job, django_assert_max_num_queries: Any
    ) -> None:
        show(alice, job, 60)
        client = browser(alice)
        client.get("/notices/")
        with django_assert_max_num_queries(12):
            html = client.get("/notices/?page=2").content.decode()
        assert "26–50 of 60 notices" in html


class TestPreferences:
    def test_they_are_stored_and_shown(self, alice: User) -> None:
        client = browser(alice)
        sent = {**DEFAULTS, "quiet_from": "22:00", "quiet_until": "07:00", "portal": ALL, "mail": ["failed"]}
        assert client.post("/accounts/notifications/", sent).status_code == 302
        row = Preferences.objects.get()
        assert row.portal_off == [] and row.mail_off == [key for key in ALL if key != "failed"]
        assert (row.quiet_from, row.quiet_until, row.zone) == (time(22), time(7), "Europe/Berlin")
        html = client.get("/accounts/notifications/").content.decode()
        assert html.count(" checked") >= len(ALL) + 1

    def test_each_channel_has_a_column(self, alice: User) -> None:
        channel, _ = services.add_channel(alice, "webhook", "mine", {"url": HOOK})
        browser(alice).post("/accounts/notifications/", {**DEFAULTS, f"channel_{channel.pk}": ["failed", "idle"]})
        channel.refresh_from_db()
        assert set(channel.off) == set(ALL) - {"failed", "idle"}

    @pytest.mark.parametrize(
        "wrong", [{"digest": "x"}, {"zone": "Mars/Base"}, {"quiet_from": "22:00"}, {"mail": ["alarm"]}, {"mail": ["x"]}]
    )
    def test_what_does_not_exist_is_refused(self, alice: User, wrong: dict[str, Any]) -> None:
        page = browser(alice).post("/accounts/notifications/", {**DEFAULTS, **wrong})
        assert page.status_code == 400 and "needs your attention" in compact(page.content.decode())
        assert not Preferences.objects.exists()

    def test_a_project_is_muted_on_its_page_and_heard_again_here(self, alice: User, project: Project) -> None:
        client = browser(alice)
        client.post(f"/projects/{project.pk}/notifications/mute", {"muted": "yes"})
        assert MutedProject.objects.filter(user=alice, project=project).exists()
        assert "digits" in client.get("/accounts/notifications/").content.decode()
        client.post(f"/accounts/notifications/unmute/{project.pk}")
        assert not MutedProject.objects.exists()

    def test_a_test_is_mailed(self, alice: User) -> None:
        browser(alice).post("/accounts/notifications/test-mail")
        deliver()
        assert mail.outbox[0].to == ["alice@example.org"] and "test" in mail.outbox[0].subject


class TestWithoutMail:
    """Pages say only what is so while mail is not set up."""

    @pytest.fixture(autouse=True)
    def no_mail(self, settings: Any) -> None:
        settings.EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"

    def test_the_column_is_shut_and_keeps_what_was_chosen(self, alice: User) -> None:
        Preferences.objects.create(user=alice, mail_off=["idle"])
        client = browser(alice)
        html = compact(client.get("/accounts/notifications/").content.decode())
        assert html.count(" disabled>") >= len(ALL) and "an admin has to set up mail" in html
        assert "Send me a test" not in html
        assert client.post("/accounts/notifications/", {**DEFAULTS, "portal": ["failed"]}).status_code == 302
        assert Preferences.objects.get().mail_off == ["idle"]

    def test_no_test_is_sent(self, alice: User) -> None:
        page = browser(alice).post("/accounts/notifications/test-mail", follow=True)
        assert "Mail is not set up" in page.content.decode() and not Delivery.objects.exists()

    def test_the_admins_page_claims_nothing(self) -> None:
        html = browser(world.make_user("ada", is_staff=True, email="ada@x.org")).get("/admin/notifications/").content
        assert b"Mail me a test" not in html and b"arrived" not in html and b"Nothing was given up" in html

    def test_the_empty_list_of_notices_promises_no_mail(self, alice: User) -> None:
        html = browser(alice).get("/notices/").content.decode()
        assert "No notices yet" in html and "by mail" not in html


class TestFirstSave:
    def test_the_zone_of_the_browser_is_no_change_of_another_person(self, alice: User) -> None:
        client = browser(alice)
        form = PreferencesForm(alice, [], "UTC")
        client.cookies["zone"] = "Europe/Berlin"
        sent = {**DEFAULTS, "zone": "UTC", "portal": ALL, "mail": ALL, "shown_values": stale_forms.encode_shown(form)}
        assert client.post("/accounts/notifications/", sent).status_code == 302
        assert Preferences.objects.get().zone == "UTC"

    def test_only_who_wants_one_message_a_day_needs_its_time(self, alice: User) -> None:
        client = browser(alice)
        assert client.post("/accounts/notifications/", {**DEFAULTS, "digest_at": ""}).status_code == 302
        assert Preferences.objects.get().digest_at == time(8)
        page = client.post("/accounts/notifications/", {**DEFAULTS, "digest": "day", "digest_at": ""})
        assert page.status_code == 400 and "Fill in the time" in page.content.decode()


class TestUnsubscribe:
    def link(self, user: User, kind: str) -> str:
        return unsubscribe.link(user.pk, kind).removeprefix("https://lab.example.org")

    def test_one_click_stops_the_kind_without_a_session(self, alice: User) -> None:
        client = Client(enforce_csrf_checks=True)
        answer = client.post(
            self.link(alice, kinds.ENDED),
            "List-Unsubscribe=One-Click",
            content_type="application/x-www-form-urlencoded",
        )
        assert answer.status_code == 200
        assert Preferences.objects.get().mail_off == [kinds.ENDED]

    def test_a_reader_is_asked_first_and_may_stop_all(self, alice: User) -> None:
        page = Client().get(self.link(alice, kinds.ENDED))
        assert "Stop these mails?" in page.content.decode() and not Preferences.objects.exists()
        Client().post(self.link(alice, kinds.ENDED), {"scope": "all"})
        assert set(Preferences.objects.get().mail_off) == set(kinds.BY_KEY)

    def test_a_changed_link_stops_nothing(self, alice: User) -> None:
        assert Client().post(self.link(alice, kinds.ENDED)[:-2] + "x/").status_code == 404
        assert not Preferences.objects.exists()


class TestProject:
    def test_an_owner_registers_a_webhook_and_sees_what_was_sent(
        self, alice: User, project: Project, receiver: Receiver
    ) -> None:
        client = browser(alice)
        made = client.post(
            f"/projects/{project.pk}/notifications", {"url": HOOK, "events": ["job.submitted"], "name": "ci"}
        )
        assert "whsec_" in made.content.decode()
        hook = Channel.objects.get()
        world.make_job(project)
        client.post(f"/webhooks/{hook.pk}/test")
        deliver(sender=receiver)
        html = client.get(f"/webhooks/{hook.pk}/").content.decode()
        assert str(receiver.requests[0].uid) in html and "whsec_" not in html
        client.post(f"/webhooks/deliveries/{Delivery.objects.get().pk}/again")
        deliver(sender=receiver)
        assert len({each.uid for each in receiver.requests}) == 1 and len(receiver.requests) == 2

    def test_an_owner_keeps_logs_inside(self, alice: User, project: Project) -> None:
        client = browser(alice)
        client.post(f"/projects/{project.pk}/notifications/privacy", {"private": "yes"})
        assert PrivateProject.objects.filter(project=project).exists()
        assert "neither causes nor lines" in compact(
            client.get(f"/projects/{project.pk}/notifications").content.decode()
        )
        client.post(f"/projects/{project.pk}/notifications/privacy")
        assert not PrivateProject.objects.exists()


class TestAdmin:
    @pytest.fixture
    def ada(self) -> User:
        return world.make_user("ada", is_staff=True, email="ada@example.org")

    def test_what_was_given_up_is_listed_and_sent_again(self, ada: User, alice: User, job: Job) -> None:
        show(alice, job)
        Delivery.objects.create(notice=Notice.objects.get(), due_at=timezone.now())
        deliver(sender=Receiver(GONE))
        client = browser(ada)
        html = client.get("/admin/notifications/").content.decode()
        assert "alice@example.org" in html and "answered 410" in html
        assert "1 message was given up" in client.get("/admin/").content.decode()
        client.post(f"/admin/notifications/deliveries/{Delivery.objects.get().pk}/retry")
        deliver()
        assert len(mail.outbox) == 1 and MailStatus.objects.get().last_sent_at is not None

    def test_settings_are_saved_in_one_way_of_writing(self, ada: User) -> None:
        sent = {
            "channel_types": ["slack"],
            "allowed_hosts": "Chat\n10.0.0.7\n",
            "apprise_schemes": "pover://",
            "long_wait_minutes": 10,
        }
        assert browser(ada).post("/admin/notifications/settings", sent).status_code == 302
        row = NotificationSettings.objects.get()
        assert (row.allowed_hosts, row.apprise_schemes, row.enabled_types) == (
            ["10.0.0.7", "chat"],
            ["pover"],
            ["slack"],
        )

    def test_the_texts_of_mails_have_placeholders_and_nothing_else(self, ada: User, alice: User, job: Job) -> None:
        client = browser(ada)
        for bad in ("{password}", "{title.__class__}", "{", "{{title}}"):
            page = client.post("/admin/notifications/templates/ended", {"subject": bad})
            assert page.status_code == 400 and not MailTemplate.objects.exists()
        sent = {"subject": "[GPU lab] {title}", "intro": "Dear {user} of {project},"}
        assert client.post("/admin/notifications/templates/ended", sent).status_code == 302
        show(alice, job)
        Delivery.objects.create(notice=Notice.objects.select_related().get(), due_at=timezone.now())
        Notice.objects.update(project=job.project)
        deliver()
        assert mail.outbox[0].subject.startswith("[GPU lab] Job")
        assert mail.outbox[0].body.startswith("Dear alice of digits,")

    def test_a_test_mail_comes_back_to_the_page(self, ada: User) -> None:
        assert (
            browser(ada).post("/accounts/notifications/test-mail", {"admin": "yes"})["Location"]
            == "/admin/notifications/"
        )


@pytest.mark.parametrize(
    ("site", "hosts", "lab", "warns"),
    [
        ("https://lab.example.org", ["lab.example.org"], True, False),
        ("https://lab.example.org", [".example.org"], True, False),
        ("https://lab.example.org", ["localhost"], True, True),
        ("http://localhost:8000", ["localhost"], True, True),
        ("http://[::1]:8000", ["[::1]"], True, True),
    ],
)
def test_an_address_that_no_one_can_open_is_a_warning(
    settings: Any, site: str, hosts: list[str], lab: bool, warns: bool
) -> None:
    settings.SITE_URL, settings.ALLOWED_HOSTS, settings.LAB = site, hosts, lab
    assert bool(checks.links_can_be_followed()) == warns


def test_the_small_size_without_mail_is_fine_as_it_is(settings: Any) -> None:
    settings.SITE_URL, settings.ALLOWED_HOSTS, settings.LAB = "http://localhost:8000", ["localhost"], False
    settings.EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
    assert not checks.links_can_be_followed()


def test_a_notice_is_old_after_a_while(alice: User, job: Job) -> None:
    [row] = show(alice, job)
    Notice.objects.filter(pk=row.pk).update(at=timezone.now() - timedelta(days=2))
    assert "2 days ago" in browser(alice).get("/notices/").content.decode()
