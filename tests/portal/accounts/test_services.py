"""Joining, roles, audit and limits: the rules, without pages."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.utils import timezone

from portal.accounts import services
from portal.accounts.audit import audit
from portal.accounts.limits import limits_for, limits_in_force, may_use_premium, set_limit
from portal.accounts.models import ApiToken, AuditEntry, Invite, Limit, User
from portal.refused import Refused

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def ada() -> User:
    return User.objects.create_user("ada", "ada@example.org", "sunflower-cabinet", is_staff=True)


@pytest.fixture
def alice() -> User:
    return User.objects.create_user("alice", "alice@example.org", "sunflower-cabinet")


def join(token: str, name: str = "newcomer") -> User:
    return services.accept_invite(token, username=name, password="sunflower-cabinet")


def token_of(link: str) -> str:
    return link.rstrip("/").rsplit("/", 1)[-1]


class TestSetupLink:
    def test_the_first_person_becomes_admin_and_the_link_dies(self) -> None:
        link = services.setup_link("http://lab:8000/")
        assert link is not None and link.startswith("http://lab:8000/accounts/")
        assert join(token_of(link)).is_admin
        with pytest.raises(Refused):
            join(token_of(link), "second")
        assert services.setup_link("http://lab:8000") is None

    def test_a_fresh_one_ends_the_one_before(self) -> None:
        first, second = services.setup_link("http://x"), services.setup_link("http://x")
        assert first and second
        assert services.find_invite(token_of(first)) is None
        assert services.find_invite(token_of(second)) is not None

    def test_it_is_dead_once_an_admin_exists_however_that_came_about(self, ada: User) -> None:
        User.objects.update(is_staff=False)
        link = services.setup_link("http://x")
        assert link
        User.objects.update(is_staff=True)
        with pytest.raises(Refused):
            join(token_of(link))


class TestInvites:
    def test_it_gives_the_groups_and_the_role_it_promises(self, ada: User) -> None:
        group = services.create_group(ada, "students")
        _, token = services.create_invite(ada, groups=[group])
        user = join(token)
        assert list(user.groups.all()) == [group]
        assert not user.is_admin

    def test_it_works_once(self, ada: User) -> None:
        _, token = services.create_invite(ada)
        join(token, "one")
        with pytest.raises(Refused, match="used already"):
            join(token, "two")
        assert not User.objects.filter(username="two").exists()

    def test_it_expires_and_can_be_revoked(self, ada: User) -> None:
        old, old_token = services.create_invite(ada)
        Invite.objects.filter(pk=old.pk).update(expires_at=timezone.now())
        gone, gone_token = services.create_invite(ada)
        services.revoke_invite(ada, gone)
        for token in (old_token, gone_token, "", "x" * 43):
            with pytest.raises(Refused):
                join(token)

    def test_a_name_taken_since_the_form_was_checked_is_refused_and_the_link_stays_good(self, ada: User) -> None:
        _, token = services.create_invite(ada)
        with pytest.raises(Refused, match="just been taken"):
            join(token, "Ada")
        assert join(token, "other").username == "other"


class TestLastAdmin:
    def test_the_last_admin_keeps_role_and_access(self, ada: User) -> None:
        with pytest.raises(Refused, match="last admin"):
            services.set_admin(ada, ada, False)
        with pytest.raises(Refused, match="last admin"):
            services.set_active(ada, ada, False)

    def test_an_inactive_admin_does_not_count(self, ada: User, alice: User) -> None:
        services.set_admin(ada, alice, True)
        services.set_active(ada, alice, False)
        with pytest.raises(Refused, match="last admin"):
            services.set_admin(ada, ada, False)

    def test_one_of_two_may_go(self, ada: User, alice: User) -> None:
        services.set_admin(ada, alice, True)
        services.set_admin(alice, ada, False)
        assert not User.objects.get(username="ada").is_admin


class TestAudit:
    def test_each_act_leaves_one_row_with_before_and_after(self, ada: User, alice: User) -> None:
        services.set_admin(ada, alice, True)
        services.set_admin(ada, alice, True)  # nothing changes, nothing to tell
        entry = AuditEntry.objects.get()
        assert (entry.actor, entry.action, entry.target) == (ada, "user.role", "user alice")
        assert (entry.before, entry.after) == ({"admin": False}, {"admin": True})

    @pytest.mark.parametrize(
        "statement", ["UPDATE accounts_auditentry SET action = 'x'", "DELETE FROM accounts_auditentry"]
    )
    def test_no_statement_changes_or_deletes_a_row(self, ada: User, statement: str) -> None:
        audit(ada, "policy.switch", "policy", {"policy": "fifo"}, {"policy": "round_robin"})
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
        assert AuditEntry.objects.get().action == "policy.switch"

    def test_an_act_that_is_rolled_back_leaves_no_row(self, ada: User) -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            services.create_group(ada, "students")
            raise ZeroDivisionError
        assert not AuditEntry.objects.exists()
        assert not Group.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_an_audit_row_without_a_transaction_is_refused(ada: User) -> None:
    with pytest.raises(RuntimeError, match="inside transaction"):
        audit(ada, "policy.switch", "policy")


class TestLimits:
    def test_a_user_is_under_their_own_limit_and_those_of_their_groups(self, ada: User, alice: User) -> None:
        group = services.create_group(ada, "students")
        services.set_members(ada, group, [alice, ada])
        set_limit(ada, alice, max_gpus=2, max_queued=None)
        set_limit(ada, group, max_gpus=4, max_queued=10)
        own, shared = limits_for(alice)
        assert (own.name, own.max_gpus, own.max_queued, own.user_ids) == ("alice", 2, None, {alice.pk})
        assert (shared.name, shared.max_gpus, shared.max_queued) == ("group students", 4, 10)
        assert shared.user_ids == {alice.pk, ada.pk}
        assert limits_for(ada) == (shared,)

    def test_all_limits_take_two_queries(self, ada: User, django_assert_num_queries: object) -> None:
        for n in range(5):
            group = services.create_group(ada, f"g{n}")
            services.set_members(ada, group, [ada])
            set_limit(ada, group, max_gpus=n, max_queued=None)
        with django_assert_num_queries(2):  # type: ignore[operator]
            assert len(limits_in_force()) == 5

    def test_both_empty_takes_the_limit_away(self, ada: User, alice: User) -> None:
        set_limit(ada, alice, max_gpus=0, max_queued=1)
        assert limits_for(alice)[0].max_gpus == 0  # none at all is a limit too
        set_limit(ada, alice, max_gpus=None, max_queued=None)
        assert limits_for(alice) == ()
        assert not Limit.objects.exists()

    def test_a_weight_alone_is_kept_but_is_no_limit(self, ada: User, alice: User) -> None:
        set_limit(ada, alice, max_gpus=None, max_queued=None, weight=3.0)
        assert limits_for(alice) == ()
        assert [(limit.user_id, limit.weight) for limit in limits_in_force()] == [(alice.pk, 3.0)]

    def test_premium_is_for_admins_and_whom_they_let(self, ada: User, alice: User) -> None:
        set_limit(ada, alice, max_gpus=2, max_queued=None)
        assert may_use_premium(ada) and not may_use_premium(alice)
        group = services.create_group(ada, "urgent")
        services.set_members(ada, group, [alice])
        set_limit(ada, group, max_gpus=None, max_queued=None, premium=True)
        assert may_use_premium(alice)


class TestTokens:
    def test_a_user_has_a_bounded_number(self, alice: User) -> None:
        for n in range(services.MAX_TOKENS):
            services.create_token(alice, f"t{n}")
        with pytest.raises(Refused, match="Revoke one"):
            services.create_token(alice, "one more")
        services.revoke_token(ApiToken.objects.first())  # type: ignore[arg-type]
        services.create_token(alice, "fits again", expires_at=timezone.now() + timedelta(days=1))


def test_names_that_differ_by_case_only_are_one_name(alice: User) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.create_user("Alice", "", "sunflower-cabinet")
