"""``manage.py setup-link``: the link of the first admin, and that of another one when no admin can sign in."""

import os
import subprocess
import sys
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from portal.accounts import services
from portal.accounts.models import AuditEntry, Invite, User
from portal.cluster.models import Node
from tests.portal.jobs_world import make_user
from tests.portal.upgrades import upgrade_from

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]

ROOT = Path(__file__).resolve().parents[3]
PASSWORD = "sunflower-cabinet"


@pytest.fixture
def ada() -> User:
    return make_user("ada", is_staff=True)


def printed(*arguments: str) -> str:
    """Return the path of the link that the command prints, alone on its line."""
    stdout = StringIO()
    call_command("setup-link", *arguments, stdout=stdout)
    line, end, rest = stdout.getvalue().partition("\n")
    assert end and not rest and line.startswith("http")
    return line.split("/", 3)[3].join(["/", ""])


def accept(path: str, name: str) -> User | None:
    Client().post(path, {"username": name, "password1": PASSWORD, "password2": PASSWORD, "password": PASSWORD})
    return User.objects.filter(username=name).first()


def test_the_first_admin_comes_in_by_the_newest_link() -> None:
    old, new = printed(), printed()
    assert accept(old, "mallory") is None
    user = accept(new, "ada")
    assert user is not None and user.is_admin


@pytest.mark.parametrize("again", [False, True])
def test_the_link_of_the_first_admin_is_valid_for_a_week(again: bool) -> None:
    printed(*["--again"] * again)
    invite = Invite.objects.get()
    assert invite.makes_admin and not invite.recovers
    assert invite.expires_at > timezone.now() + timedelta(days=6, hours=23)
    assert not AuditEntry.objects.exists()


def test_with_an_admin_it_is_refused_and_changes_nothing(ada: User) -> None:
    with pytest.raises(CommandError, match="ask one for an invitation.*setup-link --again"):
        printed()
    assert not Invite.objects.exists() and not AuditEntry.objects.exists()


def test_again_makes_another_admin_within_an_hour_and_is_in_the_audit_log(ada: User) -> None:
    path = printed("--again")
    invite = Invite.objects.get()
    assert timedelta(minutes=59) < invite.expires_at - timezone.now() <= timedelta(hours=1)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor, entry.target) == ("invite.recovery", None, f"invite {invite.pk}")
    browser = Client()
    browser.force_login(ada)
    assert "The portal</strong> printed a link for another admin" in browser.get("/admin/audit/").content.decode()
    assert "setup-link --again" in browser.get("/admin/invites/").content.decode()
    user = accept(path, "grace")
    assert user is not None and user.is_admin
    assert accept(path, "mallory") is None


def test_an_older_link_of_either_kind_is_invalid(ada: User) -> None:
    first, second = printed("--again"), printed("--again")
    assert accept(first, "mallory") is None
    Invite.objects.update(expires_at=timezone.now())
    assert accept(second, "mallory") is None


def test_a_link_from_before_the_first_admin_stays_invalid_beside_a_newer_one(ada: User) -> None:
    User.objects.update(is_staff=False)
    early = printed()
    User.objects.update(is_staff=True)
    assert accept(early, "mallory") is None
    assert services.setup_link("http://x") is None
    assert Invite.objects.count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.thorough
def test_invitations_of_an_earlier_release_keep_their_validity(ada: User) -> None:
    _, ordinary = services.create_invite(ada, makes_admin=True)
    User.objects.update(is_staff=False)
    early = printed()
    User.objects.update(is_staff=True)
    upgrade_from("accounts", "0008_lists_and_lab_settings")
    assert accept(early, "mallory") is None
    assert services.accept_invite(ordinary, username="grace", password=PASSWORD).is_admin


def test_the_link_of_an_admin_who_comes_back_works_beside_a_node_of_plain_processes(ada: User) -> None:
    Node.objects.create(name="old", runtime=Node.Runtime.PROCESS, approved_at=timezone.now())
    again = accept(printed("--again"), "ada-again")
    assert again is not None and again.is_admin


def test_a_database_without_tables_is_named_with_what_to_do(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    done = subprocess.run(
        [sys.executable, "manage.py", "setup-link"],
        cwd=ROOT,
        env=environ | {"SCHEDULEARN_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "manage.py migrate" in done.stderr and "Traceback" not in done.stderr
