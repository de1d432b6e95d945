"""The pages of accounts, as a browser uses them."""

import re
from typing import Any

import pytest
from celery import current_app
from django.contrib.auth.models import Group
from django.core import mail
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from portal.accounts import forms, services, tasks
from portal.accounts.limits import limits_for, may_use_premium, set_limit
from portal.accounts.models import ApiToken, AuditEntry, Invite, User
from portal.notifications import outbox
from tests.laws.people import PASSWORD, make_people
from tests.portal.outbox import deliver

pytestmark = pytest.mark.django_db
NEW = "weathered-lighthouse-7"


@pytest.fixture(autouse=True)
def clean_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget earlier requests for mail, and send mail at once even where a worker would send it."""
    cache.clear()
    monkeypatch.setattr(outbox, "wake_worker", deliver)


@pytest.fixture
def people() -> dict[str, User]:
    return make_people()


def browser(user: User | None = None, **kwargs: Any) -> Client:
    client = Client(**kwargs)
    if user is not None:
        client.force_login(user)
    return client


def sign_in(client: Client, name: str, password: str, **extra: Any) -> Any:
    return client.post(reverse("accounts:sign-in"), {"username": name, "password": password}, **extra)


def link_in(text: str) -> str:
    found = re.search(r"http://localhost:\d+(/[^\s<]+)", text)
    assert found, text
    return found[1]


class TestSigningIn:
    def test_the_right_password_signs_in(self, people: dict[str, User]) -> None:
        client = browser()
        assert sign_in(client, "alice", PASSWORD).status_code == 302
        assert client.get(reverse("accounts:profile")).status_code == 200

    def test_an_unknown_name_and_a_wrong_password_get_the_same_answer(self, people: dict[str, User]) -> None:
        def page_for(name: str) -> str:
            page = sign_in(browser(), name, "wrong").content.decode().replace(name, "")
            return re.sub(r'(csrfmiddlewaretoken" value|nonce)="[^"]*"', "", page)

        User.objects.filter(username="charlie").update(is_active=False)
        assert page_for("alice") == page_for("unknown-user") == page_for("charlie")

    def test_an_unknown_name_costs_a_password_hash_too(
        self, people: dict[str, User], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Counted rather than timed: the hash is what takes the time."""
        hashed: list[str] = []
        monkeypatch.setattr(User, "set_password", lambda self, raw: hashed.append(raw))
        sign_in(browser(), "unknown-user", "wrong")
        assert hashed == ["wrong"]

    def test_ten_wrong_passwords_lock_sign_in_and_a_forged_header_does_not_unlock_it(
        self, people: dict[str, User]
    ) -> None:
        client = browser()
        answers = [sign_in(client, "alice", "wrong", HTTP_X_FORWARDED_FOR=f"10.0.0.{n}").status_code for n in range(12)]
        assert 429 in answers[9:] and 429 not in answers[:9]
        assert sign_in(client, "alice", PASSWORD, HTTP_X_FORWARDED_FOR="10.9.9.9").status_code == 429
        assert "locked for 15 minutes" in sign_in(client, "alice", PASSWORD).content.decode()

    def test_the_lock_is_for_one_name_from_one_address(self, people: dict[str, User]) -> None:
        for _ in range(11):
            sign_in(browser(), "alice", "wrong")
        assert sign_in(browser(), "bob", PASSWORD).status_code == 302
        assert sign_in(browser(REMOTE_ADDR="10.0.0.7"), "alice", PASSWORD).status_code == 302

    def test_behind_our_proxy_the_last_forwarded_address_counts(self, people: dict[str, User], settings: Any) -> None:
        settings.BEHIND_PROXY = True
        for n in range(11):
            sign_in(browser(), "alice", "wrong", HTTP_X_FORWARDED_FOR=f"1.1.1.{n}, 10.0.0.7")
        assert sign_in(browser(), "alice", PASSWORD, HTTP_X_FORWARDED_FOR="9.9.9.9, 10.0.0.7").status_code == 429
        assert sign_in(browser(), "alice", PASSWORD, HTTP_X_FORWARDED_FOR="10.0.0.7, 10.0.0.8").status_code == 302

    @pytest.mark.parametrize(
        "to",
        ["https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)", "https:evil.example"],
    )
    def test_next_does_not_lead_away(self, people: dict[str, User], to: str) -> None:
        address = reverse("accounts:sign-in")
        page = browser().post(f"{address}?next={to}", {"username": "alice", "password": PASSWORD, "next": to})
        assert (page.status_code, page["Location"]) == (302, "/")

    def test_next_leads_where_one_wanted_to_go(self, people: dict[str, User]) -> None:
        client = browser()
        asked = client.get(reverse("accounts:tokens"))
        assert asked.status_code == 302
        page = client.post(
            asked["Location"], {"username": "alice", "password": PASSWORD, "next": reverse("accounts:tokens")}
        )
        assert page["Location"] == reverse("accounts:tokens")

    def test_a_link_cannot_sign_out(self, people: dict[str, User]) -> None:
        client = browser(people["alice"])
        assert client.get(reverse("accounts:sign-out")).status_code == 405
        assert client.post(reverse("accounts:sign-out")).status_code == 302
        assert client.get(reverse("accounts:profile")).status_code == 302


class TestSessions:
    def test_a_changed_password_ends_the_other_sessions(self, people: dict[str, User]) -> None:
        here, there = browser(people["alice"]), browser(people["alice"])
        data = {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW}
        assert here.post(reverse("accounts:password-change"), data).status_code == 302
        assert here.get(reverse("accounts:profile")).status_code == 200
        assert there.get(reverse("accounts:profile")).status_code == 302

    def test_sign_out_everywhere_keeps_this_one(self, people: dict[str, User]) -> None:
        here, there = browser(people["alice"]), browser(people["alice"])
        here.post(reverse("accounts:sign-out-everywhere"))
        assert here.get(reverse("accounts:profile")).status_code == 200
        assert there.get(reverse("accounts:profile")).status_code == 302

    def test_a_deactivated_user_is_out_and_stays_out_when_activated_again(self, people: dict[str, User]) -> None:
        client = browser(people["alice"])
        services.set_active(people["ada"], people["alice"], False)
        assert client.get(reverse("accounts:profile")).status_code == 302
        services.set_active(people["ada"], people["alice"], True)
        assert client.get(reverse("accounts:profile")).status_code == 302
        assert sign_in(client, "alice", PASSWORD).status_code == 302

    def test_the_database_does_not_know_what_the_browser_holds(self, people: dict[str, User]) -> None:
        from django.contrib.sessions.models import Session

        client = browser(people["alice"])
        row = Session.objects.get()
        assert client.cookies["sessionid"].value not in (row.session_key, row.session_data)
        thief = browser()
        thief.cookies["sessionid"] = row.session_key
        assert thief.get(reverse("accounts:profile")).status_code == 302


class TestReset:
    def test_mail_leads_to_a_new_password_once(self, people: dict[str, User]) -> None:
        client = browser()
        assert client.post(reverse("accounts:password-reset"), {"email": "alice@example.org"}).status_code == 302
        path = link_in(str(mail.outbox[0].body))
        form = client.get(path)
        assert form.status_code == 302  # the token moves from the address into the session
        done = client.post(form["Location"], {"new_password1": NEW, "new_password2": NEW})
        assert done["Location"] == reverse("accounts:sign-in")
        assert sign_in(browser(), "alice", NEW).status_code == 302
        assert "no longer works" in browser().get(path).content.decode()

    def test_a_reset_ends_a_lockout_and_mentions_tokens_that_stay_valid(self, people: dict[str, User]) -> None:
        services.create_token(people["alice"], "sweep")
        for _ in range(11):
            sign_in(browser(), "alice", "wrong")
            sign_in(browser(), "bob", "wrong")
        browser().post(reverse("accounts:password-reset"), {"email": "alice@example.org"})
        client = browser()
        form = client.get(link_in(str(mail.outbox[0].body)))
        done = client.post(form["Location"], {"new_password1": NEW, "new_password2": NEW}, follow=True)
        assert "You have 1 valid API token. Revoke those" in done.content.decode()
        assert sign_in(browser(), "alice", NEW).status_code == 302
        assert sign_in(browser(), "bob", PASSWORD).status_code == 429, (
            "only the lockout of the one who has a new password"
        )

    def test_a_reset_revokes_tokens_on_request_and_lifts_the_users_lock(self, people: dict[str, User]) -> None:
        services.create_token(people["alice"], "sweep")
        services.create_token(people["bob"], "other")
        link = services.reset_link(people["ada"], people["alice"], "")
        for _ in range(10):
            sign_in(browser(), "alice", "wrong")
        assert sign_in(browser(), "alice", PASSWORD).status_code == 429
        client = browser()
        sent = {"new_password1": NEW, "new_password2": NEW, "revoke_tokens": "on"}
        done = client.post(client.get(link)["Location"], sent, follow=True)
        assert "1 API token revoked." in done.content.decode()
        assert not services.live_tokens(people["alice"]) and services.live_tokens(people["bob"])
        assert sign_in(browser(), "alice", NEW).status_code == 302

    def test_a_changed_password_revokes_tokens_on_request(self, people: dict[str, User]) -> None:
        services.create_token(people["alice"], "sweep")
        data = {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW, "revoke_tokens": "on"}
        browser(people["alice"]).post(reverse("accounts:password-change"), data)
        assert not services.live_tokens(people["alice"])

    def test_a_mail_that_the_previous_release_queued_is_sent(self) -> None:
        queued = current_app.tasks[tasks.mail.name]
        queued.apply(args=["Choose a new password for Schedulearn", "Hello alice", "alice@example.org"])
        [sent] = mail.outbox
        assert (sent.subject, sent.body, sent.to) == (
            "Choose a new password for Schedulearn",
            "Hello alice",
            ["alice@example.org"],
        )

    def test_a_reset_that_the_previous_release_queued_is_sent(self) -> None:
        message = {"code": "password_reset", "user": "alice", "path": "/accounts/password/reset/x/y/"}
        tasks.send.apply(args=[message, "alice@example.org"])
        assert "/accounts/password/reset/x/y/" in str(mail.outbox[0].body)

    def test_an_unknown_address_gets_the_same_answer_and_no_mail(self, people: dict[str, User]) -> None:
        answers = {
            (page.status_code, page["Location"])
            for email in ("alice@example.org", "unknown@example.org")
            for page in [browser().post(reverse("accounts:password-reset"), {"email": email})]
        }
        assert len(answers) == 1
        assert [message.to for message in mail.outbox] == [["alice@example.org"]]

    def test_the_link_names_our_site_whatever_host_was_asked(self, people: dict[str, User], settings: Any) -> None:
        settings.ALLOWED_HOSTS = ["*"]
        browser().post(reverse("accounts:password-reset"), {"email": "alice@example.org"}, HTTP_HOST="evil.example")
        assert "evil" not in mail.outbox[0].body

    def test_no_one_can_fill_a_mailbox(self, people: dict[str, User]) -> None:
        for _ in range(5):
            browser().post(reverse("accounts:password-reset"), {"email": "bob@example.org"})
        assert len(mail.outbox) == 1

    def test_an_admin_can_make_the_link(self, people: dict[str, User]) -> None:
        page = browser(people["ada"]).post(reverse("accounts:user-reset-link", args=[people["bob"].pk]))
        client = browser()
        form = client.get(link_in(page.content.decode()))
        client.post(form["Location"], {"new_password1": NEW, "new_password2": NEW})
        assert sign_in(browser(), "bob", NEW).status_code == 302
        assert AuditEntry.objects.get().action == "user.reset_link"


class TestInvites:
    def join(self, path: str, name: str = "newcomer", password: str = NEW, client: Client | None = None) -> Any:
        return (client or browser()).post(path, {"username": name, "password": password, "email": ""})

    def test_from_the_admins_page_to_the_new_account(self, people: dict[str, User]) -> None:
        group = Group.objects.create(name="students")
        page = browser(people["ada"]).post(
            reverse("accounts:invites"), {"email": "new@example.org", "groups": [group.pk]}
        )
        assert page["Cache-Control"].find("no-store") >= 0
        path = link_in(page.content.decode())
        client = browser()
        assert "new@example.org" in client.get(path).content.decode()
        assert self.join(path, client=client).status_code == 302
        assert client.get(reverse("accounts:profile")).status_code == 200
        user = User.objects.get(username="newcomer")
        assert list(user.groups.all()) == [group] and not user.is_admin
        assert browser().get(path).status_code == 404
        assert path.split("/")[-2] not in browser(people["ada"]).get(reverse("accounts:invites")).content.decode()

    def test_weak_passwords_and_taken_names_are_refused_and_the_link_stays_good(self, people: dict[str, User]) -> None:
        _, token = services.create_invite(people["ada"])
        path = reverse("accounts:invite", args=[token])
        for name, password, reason in (
            ("x", "password", "too common"),
            ("x", "12345", "too short"),
            ("Alice", NEW, "taken"),
            ("bad name", NEW, "valid username"),
        ):
            page = self.join(path, name, password)
            assert reason in page.content.decode(), reason
        assert self.join(path).status_code == 302

    def test_a_name_taken_while_it_was_typed_is_reported_beside_it(
        self, people: dict[str, User], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, token = services.create_invite(people["ada"])
        path = reverse("accounts:invite", args=[token])
        # the form looked before alice had joined
        monkeypatch.setattr(User, "validate_constraints", lambda self, exclude: None)
        monkeypatch.setattr(forms, "is_name_taken", lambda name: False)
        page = self.join(path, "Alice")
        assert page.status_code == 200 and "just been taken" in page.content.decode()
        assert self.join(path).status_code == 302

    def test_a_role_cannot_be_smuggled_in(self, people: dict[str, User]) -> None:
        _, token = services.create_invite(people["ada"])
        data = {
            "username": "sly",
            "password": NEW,
            "email": "",
            "is_staff": "on",
            "makes_admin": "on",
            "is_superuser": "on",
        }
        browser().post(reverse("accounts:invite", args=[token]), data)
        user = User.objects.get(username="sly")
        assert not user.is_staff and not user.is_superuser

    def test_withdrawing_ends_it(self, people: dict[str, User]) -> None:
        invite, token = services.create_invite(people["ada"])
        browser(people["ada"]).post(reverse("accounts:invite-revoke", args=[invite.pk]))
        assert self.join(reverse("accounts:invite", args=[token])).status_code == 404
        assert not Invite.objects.exists()


class TestTokens:
    def test_shown_once_and_kept_as_a_digest(self, people: dict[str, User]) -> None:
        client = browser(people["alice"])
        page = client.post(reverse("accounts:tokens"), {"name": "laptop", "scope": "read", "days": "30"})
        token = re.search(r"sl_[\w-]{43}", page.content.decode())
        assert token and "no-store" in page["Cache-Control"]
        assert token[0] not in client.get(reverse("accounts:tokens")).content.decode()
        row = ApiToken.objects.get()
        assert row.expires_at and (row.expires_at - row.created_at).days in (29, 30)

    def test_one_without_an_end(self, people: dict[str, User]) -> None:
        browser(people["alice"]).post(reverse("accounts:tokens"), {"name": "x", "scope": "write", "days": "0"})
        assert ApiToken.objects.get().expires_at is None

    def test_no_user_revokes_the_token_of_another(self, people: dict[str, User]) -> None:
        row, _ = ApiToken.issue(people["alice"], "laptop")
        assert browser(people["bob"]).post(reverse("accounts:token-revoke", args=[row.pk])).status_code == 404
        assert browser(people["alice"]).post(reverse("accounts:token-revoke", args=[row.pk])).status_code == 302
        row.refresh_from_db()
        assert not row.is_live


class TestAdminPages:
    def test_users_are_searched_and_paged(self, people: dict[str, User]) -> None:
        User.objects.bulk_create(User(username=f"student{n:03}", email=f"s{n}@example.org") for n in range(120))
        client = browser(people["ada"])
        assert "student000" not in client.get(reverse("accounts:users") + "?q=alice").content.decode()
        assert "of 125 users" in client.get(reverse("accounts:users") + "?page=2").content.decode()
        assert client.get(reverse("accounts:users") + "?q=zzz").status_code == 200
        assert "student119" in client.get(reverse("accounts:users") + "?page=99").content.decode()

    def test_a_page_of_users_takes_few_queries(
        self, people: dict[str, User], django_assert_max_num_queries: Any
    ) -> None:
        group = Group.objects.create(name="students")
        for n in range(40):
            User.objects.create(username=f"u{n}", email=f"u{n}@example.org").groups.add(group)
        client = browser(people["ada"])
        with django_assert_max_num_queries(9):
            client.get(reverse("accounts:users"))

    def test_acts_are_done_and_traced(self, people: dict[str, User]) -> None:
        client = browser(people["ada"])
        for act, action in (
            ("make-admin", "user.role"),
            ("make-member", "user.role"),
            ("deactivate", "user.deactivate"),
            ("activate", "user.activate"),
        ):
            client.post(f"/admin/users/{people['bob'].pk}/{act}/")
            entry = AuditEntry.objects.first()
            assert entry and (entry.actor, entry.action, entry.target) == (people["ada"], action, "user bob")
        assert AuditEntry.objects.count() == 4

    def test_the_last_admin_gets_the_reason_why_not(self, people: dict[str, User]) -> None:
        page = browser(people["ada"]).post(reverse("jobs:deactivate-user", args=[people["ada"].pk]), follow=True)
        assert "ada is the last admin. Make another user an admin first." in page.content.decode()
        assert User.objects.get(username="ada").is_active

    def test_groups_members_and_limits(self, people: dict[str, User]) -> None:
        client = browser(people["ada"])
        client.post(reverse("accounts:groups"), {"name": "students"})
        group = Group.objects.get()
        assert (
            "There is no user called zorro"
            in client.post(reverse("accounts:group", args=[group.pk]), {"names": "alice zorro"}).content.decode()
        )
        client.post(reverse("accounts:group", args=[group.pk]), {"names": "alice, bob"})
        assert set(group.user_set.values_list("username", flat=True)) == {"alice", "bob"}
        where = client.get(reverse("jobs:limits") + "?who=students")["Location"]
        assert "2 people use 0 GPUs" in client.get(where).content.decode()
        client.post(where, {"max_gpus": "4", "max_queued": ""})
        assert limits_for(people["bob"])[0].max_gpus == 4
        assert "0 of 4" in client.get(reverse("jobs:limits")).content.decode()
        client.post(where, {"max_gpus": "4", "weight": "2.5", "premium": "on"})
        assert 'value="2.5"' in client.get(where).content.decode()
        assert may_use_premium(people["bob"]) and not may_use_premium(people["charlie"])
        assert "Ensure this value" in client.post(where, {"weight": "0"}).content.decode()
        client.post(reverse("accounts:group-delete", args=[group.pk]))
        assert not Group.objects.exists()
        assert [entry.action for entry in AuditEntry.objects.all()] == [
            "group.delete",
            "limit.set",
            "limit.set",
            "group.members",
            "group.create",
        ]

    def test_the_audit_log_is_filtered_and_paged(self, people: dict[str, User]) -> None:
        for n in range(60):
            set_limit(people["ada"], people["bob"], max_gpus=n, max_queued=None)
        services.create_group(people["ada"], "<b>students</b>")
        client = browser(people["ada"])
        assert "of 61 entries" in client.get(reverse("interface:audit")).content.decode()
        only = client.get(reverse("interface:audit") + "?action=group.create").content.decode()
        assert "&lt;b&gt;students" in only and "<b>students" not in only and "set a limit" not in only

    def test_members_find_no_admin_pages(self, people: dict[str, User]) -> None:
        for name in ("accounts:users", "accounts:groups", "jobs:limits", "accounts:invites", "interface:audit"):
            assert browser(people["alice"]).get(reverse(name)).status_code == 404
            assert browser().get(reverse(name)).status_code == 302


class TestPagesOfLists:
    @pytest.mark.parametrize("page", ["accounts:users", "accounts:groups", "accounts:invites", "interface:audit"])
    @pytest.mark.parametrize("number", ["99", "0", "-1", "last", "x", "9" * 40])
    def test_a_page_that_does_not_exist_is_the_nearest_that_does(
        self, people: dict[str, User], page: str, number: str
    ) -> None:
        assert browser(people["ada"]).get(reverse(page), {"page": number}).status_code == 200

    def test_a_number_beyond_the_last_page_shows_the_last(self, people: dict[str, User]) -> None:
        User.objects.bulk_create(User(username=f"student-{number:03}") for number in range(60))
        for number in ("2", "99"):
            page = browser(people["ada"]).get(reverse("accounts:users"), {"page": number}).content.decode()
            assert "student-059" in page and "student-000" not in page
