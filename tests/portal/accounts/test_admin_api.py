"""Users, groups, invitations and the audit log over REST."""

from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from portal.accounts.models import ApiToken, AuditEntry, Invite, User
from portal.jobs.models import Job
from tests.laws.people import World, make_world
from tests.portal.api_client import Script

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.fixture
def ada(world: World) -> Script:
    return Script(world.ada)


def ask(script: Script, method: str, path: str, status: int, data: Any = None) -> Any:
    answer = script.send(method, path, data)
    assert answer.status_code == status, answer.content
    return answer.json() if answer.content else None


def error(answer: Any) -> tuple[str, list[str]]:
    found = answer["error"]
    return found["message"], sorted(found.get("fields", {}))


class TestUsers:
    def test_all_people_are_listed_with_their_groups(self, world: World, ada: Script) -> None:
        found = ask(ada, "get", "users/", 200)
        by_name = {row["username"]: row for row in found["results"]}
        assert found["count"] == len(by_name) and set(world.users) - {"anonymous"} <= set(by_name)
        assert by_name["ada"]["admin"] and not by_name["bob"]["admin"]
        assert "password" not in str(found) and "salt" not in str(found)

    def test_queries_do_not_grow_with_the_users(self, world: World, ada: Script) -> None:
        ask(ada, "get", "users/", 200)
        with CaptureQueriesContext(
            connection,
        ) as few:
            ask(ada, "get", "users/", 200)
        for number in range(20):
            User.objects.create_user(f"more{number}").groups.add(Group.objects.get())
        with CaptureQueriesContext(connection) as many:
            ask(ada, "get", "users/", 200)
        assert len(many) == len(few)

    def test_they_are_filtered(self, world: World, ada: Script) -> None:
        User.objects.filter(pk=world.bob.pk).update(is_active=False)
        assert [row["username"] for row in ask(ada, "get", "users/?active=false", 200)["results"]] == ["bob"]
        assert [row["username"] for row in ask(ada, "get", "users/?admin=true", 200)["results"]] == ["ada"]
        assert [row["username"] for row in ask(ada, "get", "users/?q=VICT", 200)["results"]] == ["victor"]
        ask(ada, "get", "users/?active=perhaps", 400)

    def test_access_ends_with_what_belongs_to_it_and_comes_back(self, world: World, ada: Script) -> None:
        job = world.jobs["QUEUED"]
        number = job.submitted_by_id
        heir = {"owners": [{"project": world.project.pk, "owner": "bob"}]}
        done = ask(ada, "post", f"users/{number}/deactivate/", 200, heir)
        assert done["tokens"] >= 1 and done["waiting"] >= 1 and done["projects"] == 1
        assert Job.objects.get(pk=job.pk).state == "CANCELLED"
        assert not ApiToken.objects.filter(user=number, revoked_at=None).exists()
        assert ask(ada, "get", f"users/{number}/", 200)["active"] is False
        assert ask(ada, "post", f"users/{number}/activate/", 200)["active"] is True
        assert {"user.deactivate", "user.activate"} <= set(AuditEntry.objects.values_list("action", flat=True))

    @pytest.mark.parametrize(
        ("asked", "field"),
        [
            ({"reservations_to": "alice"}, "reservations_to"),
            ({"reservations_to": "zoe"}, "reservations_to"),
            ({"owners": [{"project": 99999, "owner": "bob"}]}, "owners"),
            ({"owners": [{"project": 1}]}, "owners.0.owner"),
            ({"cancel_waitin": True}, "cancel_waitin"),
        ],
    )
    def test_nonsense_ends_nothing(self, world: World, ada: Script, asked: dict[str, Any], field: str) -> None:
        refused = ask(ada, "post", f"users/{world.alice.pk}/deactivate/", 400, asked)
        assert error(refused)[1] == [field]
        assert User.objects.get(pk=world.alice.pk).is_active

    def test_the_last_admin_stays(self, world: World, ada: Script) -> None:
        for act in ("deactivate", "make-member"):
            assert "last admin" in error(ask(ada, "post", f"users/{world.ada.pk}/{act}/", 409, {}))[0]
        assert ask(ada, "post", f"users/{world.bob.pk}/make-admin/", 200)["admin"]
        assert "cannot deactivate yourself" in error(ask(ada, "post", f"users/{world.ada.pk}/deactivate/", 409, {}))[0]
        assert not ask(ada, "post", f"users/{world.bob.pk}/make-member/", 200)["admin"]


class TestGroups:
    def test_a_group_is_created_filled_and_deleted(self, world: World, ada: Script) -> None:
        group = ask(ada, "post", "groups/", 201, {"name": "  Vision   lab "})
        assert group == {"id": group["id"], "name": "Vision lab", "members": []}
        here = f"groups/{group['id']}/"
        assert ask(ada, "put", f"{here}members/", 200, {"members": ["BOB", "alice"]})["members"] == ["alice", "bob"]
        assert ask(ada, "get", here, 200)["members"] == ["alice", "bob"]
        assert ask(ada, "put", f"{here}members/", 200, {"members": []})["members"] == []
        ask(ada, "delete", here, 204)
        ask(ada, "get", here, 404)
        assert User.objects.filter(username="bob").exists()
        kinds = list(AuditEntry.objects.order_by("pk").values_list("action", flat=True))
        assert kinds[-4:] == ["group.create", "group.members", "group.members", "group.delete"]

    @pytest.mark.parametrize("name", ["", " ", "students", "STUDENTS", "a\u200bb", "x" * 151])
    def test_names_that_cannot_be_are_refused(self, world: World, ada: Script, name: str) -> None:
        assert error(ask(ada, "post", "groups/", 400, {"name": name}))[1] == ["name"]

    def test_an_unknown_member_changes_nothing(self, world: World, ada: Script) -> None:
        group = Group.objects.get()
        before = set(group.user_set.all())
        refused = ask(ada, "put", f"groups/{group.pk}/members/", 400, {"members": ["alice", "zoe"]})
        assert error(refused) == ("There is no user called zoe.", ["members"])
        assert set(group.user_set.all()) == before


class TestInvitations:
    def test_the_link_is_shown_once_and_works(self, world: World, ada: Script) -> None:
        group = Group.objects.get()
        asked = {"email": "new@example.org", "groups": [group.name.upper()]}
        made = ask(ada, "post", "invitations/", 201, asked)
        assert (made["email"], made["groups"], made["open"], made["created_by"]) == (
            "new@example.org",
            [group.name],
            True,
            "ada",
        )
        assert Client().get(urlsplit(made["link"]).path).status_code == 200
        listed = ask(ada, "get", "invitations/?state=open", 200)["results"]
        assert listed[0]["id"] == made["id"] and "link" not in listed[0] and "token" not in str(listed)

    def test_it_is_withdrawn_unless_it_was_used(self, world: World, ada: Script) -> None:
        made = ask(ada, "post", "invitations/", 201, {})
        ask(ada, "delete", f"invitations/{made['id']}/", 204)
        ask(ada, "delete", f"invitations/{made['id']}/", 404)
        used = ask(ada, "post", "invitations/", 201, {})
        Invite.objects.filter(pk=used["id"]).update(used_at=used["created_at"])
        assert "was used" in error(ask(ada, "delete", f"invitations/{used['id']}/", 409))[0]
        assert [row["id"] for row in ask(ada, "get", "invitations/?state=used", 200)["results"]] == [used["id"]]

    def test_nonsense_invites_no_one(self, world: World, ada: Script) -> None:
        before = Invite.objects.count()
        for asked in ({"email": "x"}, {"groups": ["none such"]}, {"makes_admin": "perhaps"}, {"mail": "a@b.org"}):
            ask(ada, "post", "invitations/", 400, asked)
        Group.objects.create(name="None")
        for groups in ([None], [1], [{"a": 1}], ["students"] * 201):
            ask(ada, "post", "invitations/", 400, {"groups": groups})
        assert Invite.objects.count() == before

    @pytest.mark.parametrize(("ending", "left"), [("deactivate", []), ("make-member", [False])])
    def test_those_of_an_admin_end_with_what_let_them_invite(
        self, world: World, ada: Script, ending: str, left: list[bool]
    ) -> None:
        world.bob.is_staff = True
        world.bob.save()
        for makes_admin in (True, False):
            ask(Script(world.bob), "post", "invitations/", 201, {"makes_admin": makes_admin})
        kept = ask(ada, "post", "invitations/", 201, {"makes_admin": True})
        ask(ada, "post", f"users/{world.bob.pk}/{ending}/", 200, {})
        rows = ask(ada, "get", "invitations/?state=open", 200)["results"]
        assert [row["makes_admin"] for row in rows if row["created_by"] == "bob"] == left
        assert kept["id"] in [row["id"] for row in rows]
        assert AuditEntry.objects.filter(action="invite.revoke", actor=world.ada).count() == 2 - len(left)


class TestAudit:
    def test_entries_come_newest_first_and_are_filtered(self, world: World, ada: Script) -> None:
        ask(ada, "post", f"users/{world.bob.pk}/make-admin/", 200)
        ask(ada, "post", f"users/{world.bob.pk}/make-member/", 200)
        first, second = ask(ada, "get", "audit/?page_size=2", 200)["results"]
        assert (first["actor"], first["action"], first["target"]) == ("ada", "user.role", "user bob")
        assert (first["before"], first["after"]) == ({"admin": True}, {"admin": False})
        assert first["id"] > second["id"] and first["title"]
        assert ask(ada, "get", "audit/?action=user.role&target=BOB&actor=ada", 200)["count"] == 2
        assert ask(ada, "get", "audit/?actor=bob", 200)["count"] == 0

    def test_it_is_never_written_over_rest(self, world: World, ada: Script) -> None:
        entry = AuditEntry.objects.create(action="x", target="y")
        for method in ("post", "put", "patch", "delete"):
            assert ada.send(method, "audit/").status_code == 405
            assert ada.send(method, f"audit/{entry.pk}/").status_code == 404


def test_a_token_that_may_only_read_changes_nothing(world: World) -> None:
    reader = Script(world.ada, scope="read")
    assert reader.get("users/").status_code == 200
    for path in (f"users/{world.bob.pk}/deactivate/", "groups/", "invitations/"):
        assert reader.send("post", path, {}).status_code == 403
