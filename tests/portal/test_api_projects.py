"""Projects, members and code over REST."""

import io
import tarfile
import zipfile
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from portal.accounts.models import ApiToken
from portal.projects.models import CodeVersion, Membership, Project
from tests.laws.people import CANARY, SOURCE, World, make_world
from tests.portal.api_client import Script

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    return make_world()


def body(response: Any) -> bytes:
    return b"".join(response.streaming_content)


class TestProjects:
    def test_from_nothing_to_the_archive_and_back(self, world: World) -> None:
        script = Script(world.bob)
        made = script.send("post", "projects/", {"name": "Robots", "description": "walking"})
        assert made.status_code == 201
        assert (made.json()["role"], made.json()["created_by"]) == ("owner", "bob")
        here = f"projects/{made.json()['id']}/"
        assert script.send("patch", here, {"name": "Robots 2"}).json()["name"] == "Robots 2"
        assert script.get(here).json()["description"] == "walking"
        assert script.delete(here).status_code == 204
        assert script.get(here).json()["archived"]
        assert not script.post(f"{here}restore/").json()["archived"]

    def test_the_list_has_ones_own_with_ones_role(self, world: World) -> None:
        def seen(name: str) -> dict[str, str]:
            rows = Script(world.users[name]).get("projects/").json()["results"]
            return {row["name"]: row["role"] for row in rows}

        vision, own = world.project.name, "Charlie's own"
        assert seen("alice") == {vision: "owner"}
        assert seen("victor") == {vision: "viewer"}
        assert seen("charlie") == {own: "owner"}
        assert seen("ada") == {vision: "owner", own: "owner"}

    def test_a_long_list_takes_few_queries(self, world: World, django_assert_max_num_queries: Any) -> None:
        for n in range(60):
            project = Project.objects.create(name=f"p{n}", created_by=world.bob)
            Membership.objects.create(project=project, user=world.bob, role="viewer")
        script = Script(world.bob)
        with django_assert_max_num_queries(4):
            page = script.get("projects/?page_size=50").json()
        assert page["count"] == 61
        assert len(page["results"]) == 50

    @pytest.mark.parametrize(
        ("field", "status"),
        [(name, 200) for name in ("id", "role", "created_by", "created_at", "archived")]
        + [(name, 400) for name in ("memberships", "archived_at")],
    )
    def test_fields_that_are_not_ones_to_set_change_nothing(self, world: World, field: str, status: int) -> None:
        before = Project.objects.filter(pk=world.project.pk).values().get()
        response = Script(world.alice).send("patch", f"projects/{world.project.pk}/", {field: 999})
        assert response.status_code == status
        assert Project.objects.filter(pk=world.project.pk).values().get() == before

    def test_who_may_not_manage_gets_the_reason(self, world: World) -> None:
        here = f"projects/{world.project.pk}/"
        for name in ("bob", "victor"):
            for method, path, data in (
                ("patch", here, {"name": "mine"}),
                ("delete", here, None),
                ("post", f"{here}members/", {"username": "charlie"}),
            ):
                response = Script(world.users[name]).send(method, path, data)
                assert response.status_code == 403
                assert "owners" in response.json()["error"]["message"]


class TestMembers:
    def test_share_change_and_remove(self, world: World) -> None:
        script, here = Script(world.alice), f"projects/{world.project.pk}/members/"
        assert script.send("post", here, {"username": "charlie", "role": "viewer"}).status_code == 201
        assert script.send("patch", f"{here}charlie/", {"role": "member"}).json()["role"] == "member"
        assert [row["username"] for row in script.get(here).json()["results"]] == ["alice", "bob", "charlie", "victor"]
        assert script.delete(f"{here}charlie/").status_code == 204
        assert Script(world.charlie).get(here).status_code == 404

    def test_the_last_owner_stays(self, world: World) -> None:
        here = f"projects/{world.project.pk}/members/alice/"
        assert Script(world.alice).send("patch", here, {"role": "viewer"}).status_code == 409
        assert Script(world.alice).delete(here).status_code == 409

    def test_everybody_may_leave(self, world: World) -> None:
        assert Script(world.victor).delete(f"projects/{world.project.pk}/members/victor/").status_code == 204
        assert Script(world.bob).delete(f"projects/{world.project.pk}/members/alice/").status_code == 403


def zipped(**files: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "."), text)
    return out.getvalue()


class TestCode:
    def test_an_archive_as_the_raw_body(self, world: World) -> None:
        script, here = Script(world.bob), f"projects/{world.project.pk}/code/"
        made = script.post(
            f"{here}?name=new.zip&note=faster", zipped(train__py="print(2)\n"), content_type="application/octet-stream"
        )
        assert made.status_code == 201, made.content
        version = made.json()
        assert (version["number"], version["note"], version["created_by"]) == (2, "faster", "bob")
        assert [file["path"] for file in version["files"]] == ["train.py"]
        assert version["guess"]["entry"] == "train.py"

    def test_a_folder_as_multipart(self, world: World) -> None:
        files = [SimpleUploadedFile("a.py", b"print(1)\n"), SimpleUploadedFile("b.py", b"print(2)\n")]
        response = Script(world.bob).post(
            f"projects/{world.project.pk}/code/",
            {"file": files, "paths": ["lab/a.py", "lab/deep/b.py"], "note": "x"},
            format="multipart",
        )
        assert response.status_code == 201, response.content
        assert [file["path"] for file in response.json()["files"]] == ["a.py", "deep/b.py"]

    def test_a_folder_of_more_files_than_a_form_usually_has_fields(self, world: World) -> None:
        names = [f"lab/{number}.py" for number in range(1_001)]
        files = [SimpleUploadedFile("x.py", b"") for _ in names]
        response = Script(world.bob).post(
            f"projects/{world.project.pk}/code/", {"file": files, "paths": names}, format="multipart"
        )
        assert response.status_code == 201, response.content
        assert len(response.json()["files"]) == len(names)

    @pytest.mark.parametrize(
        ("query", "data", "content_type"),
        [
            ("", b"x", "application/octet-stream"),
            ("?name=x.zip", b"", "application/octet-stream"),
            ("?name=x.zip", b"this is no zip", "application/octet-stream"),
            ("?name=x.exe", b"MZ", "application/octet-stream"),
            ("", b'{"file": "x"}', "application/json"),
            ("", b"", "multipart/form-data; boundary=x"),
            ("", b"--x\r\nbroken", "multipart/form-data; boundary=x"),
            ("", b"x", "multipart/form-data"),
        ],
    )
    def test_what_is_no_upload_is_refused_with_a_sentence(
        self, world: World, query: str, data: bytes, content_type: str
    ) -> None:
        response = Script(world.bob).post(f"projects/{world.project.pk}/code/{query}", data, content_type=content_type)
        assert response.status_code == 400, response.content
        assert len(response.json()["error"]["message"]) > 10
        assert CodeVersion.objects.filter(project=world.project).count() == 1

    def test_a_viewer_is_refused_before_the_upload_is_unpacked(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from portal.projects import archive

        monkeypatch.setattr(archive, "store_upload", lambda uploads: pytest.fail("it was unpacked"))
        response = Script(world.victor).post(
            f"projects/{world.project.pk}/code/?name=x.py", b"print(1)", content_type="application/octet-stream"
        )
        assert response.status_code == 403

    def test_reading_it_back(self, world: World) -> None:
        script, here = Script(world.victor), f"projects/{world.project.pk}/code/1/"
        assert script.get(here).json()["sha256"] == world.code.sha256
        assert script.get(f"{here}files/").json()[0]["path"] == "train.py"
        file = script.get(f"{here}files/train.py")
        assert body(file) == SOURCE
        assert file["Content-Disposition"].startswith("attachment")
        assert (file["Content-Type"], file["X-Content-Type-Options"]) == ("application/octet-stream", "nosniff")
        assert "sandbox" in file["Content-Security-Policy"]
        with tarfile.open(fileobj=io.BytesIO(body(script.get(f"{here}download/")))) as tar:
            assert tar.getnames() == ["train.py"]
        for path in ("other.py", "../train.py", "..%2f..%2fdb.sqlite3", "%2fetc%2fpasswd"):
            assert script.get(f"{here}files/{path}").status_code == 404

    def test_what_changed(self, world: World) -> None:
        script, here = Script(world.bob), f"projects/{world.project.pk}/code/"
        script.post(f"{here}?name=train.py", b"print(2)\n", content_type="application/octet-stream")
        (change,) = script.get(f"{here}2/diff/").json()
        assert (change["path"], change["kind"], change["added"], change["removed"]) == ("train.py", "changed", 1, 1)
        assert script.get(f"{here}1/diff/").json() == []
        assert script.get(f"{here}1/diff/?to=2").json()[0]["lines"]
        assert script.get(f"{here}1/diff/?to=9").status_code == 404
        assert script.get(f"{here}1/diff/?to=x").status_code == 400


class TestGallery:
    def test_the_examples_are_listed_and_used(self, world: World) -> None:
        script = Script(world.charlie)
        keys = [example["key"] for example in script.get("gallery/").json()]
        assert "horovod-elastic" in keys
        used = script.send("post", "gallery/horovod-elastic/use/", {})
        assert used.status_code == 201
        assert Project.objects.get(pk=used.json()["project"]).created_by == world.charlie
        again = script.send("post", "gallery/horovod-elastic/use/", {"project": used.json()["project"]})
        assert again.json()["number"] == used.json()["number"]

    def test_not_into_the_projects_of_others(self, world: World) -> None:
        for name, status in (("charlie", 404), ("victor", 403)):
            response = Script(world.users[name]).send("post", "gallery/failing/use/", {"project": world.project.pk})
            assert response.status_code == status
            assert CANARY not in response.content.decode().replace(world.project.name, "") or name == "victor"
        assert Script(world.alice).send("post", "gallery/nothing/use/", {}).status_code == 404


class TestTokens:
    def test_made_once_listed_without_the_token_and_revoked(self, world: World) -> None:
        script = Script(world.alice)
        made = script.send("post", "tokens/", {"name": "laptop", "scope": "read", "days": 7})
        assert made.status_code == 201 and made["Cache-Control"] == "no-store"
        token = made.json()["token"]
        assert token not in script.get("tokens/").content.decode()
        assert script.delete(f"tokens/{made.json()['id']}/").status_code == 204
        assert not ApiToken.objects.get(pk=made.json()["id"]).is_live

    def test_others_are_not_there(self, world: World) -> None:
        row = ApiToken.objects.get(user=world.alice)
        for name in ("bob", "ada"):
            assert Script(world.users[name]).delete(f"tokens/{row.pk}/").status_code == 404
        row.refresh_from_db()
        assert row.is_live

    @pytest.mark.parametrize("field", ["user", "token_digest", "prefix", "revoked_at", "id"])
    def test_its_inner_fields_cannot_be_set(self, world: World, field: str) -> None:
        bob, before = Script(world.bob), ApiToken.objects.count()
        made = bob.send("post", "tokens/", {"name": "x", field: str(world.alice.pk)})
        assert (made.status_code, list(made.json()["error"]["fields"])) == (400, [field])
        assert ApiToken.objects.count() == before

    def test_me(self, world: World) -> None:
        me = Script(world.charlie).get("me/").json()
        assert (me["username"], me["admin"], me["groups"], me["limits"]) == ("charlie", False, ["students"], [])
