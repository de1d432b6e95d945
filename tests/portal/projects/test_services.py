"""Projects, their members and their code: what each may do, and what the numbers and bytes are."""

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser

from portal.accounts.models import User
from portal.projects import comparison, examples, services, store
from portal.projects.errors import BadArchiveError, Refused
from portal.projects.models import CodeVersion, Membership, Project
from portal.projects.services import Role

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture(autouse=True)
def own_home(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path


@pytest.fixture
def alice() -> User:
    return User.objects.create_user("alice", "alice@lab.example")


@pytest.fixture
def bob() -> User:
    return User.objects.create_user("bob", "bob@lab.example")


@pytest.fixture
def charlie() -> User:
    return User.objects.create_user("charlie")


@pytest.fixture
def admin() -> User:
    return User.objects.create_user("admin", is_staff=True)


@pytest.fixture
def project(alice: User, bob: User) -> Project:
    project = services.create_project(alice, "Vision")
    services.share(alice, project, "bob", Role.MEMBER)
    return project


def script(text: str = "print(1)\n", name: str = "train.py") -> list[tuple[str, io.BytesIO]]:
    return [(name, io.BytesIO(text.encode()))]


# Who sees and may what


def test_only_members_and_admins_see_a_project(
    project: Project, alice: User, bob: User, charlie: User, admin: User
) -> None:
    seen = {str(u): Project.objects.visible_to(u).count() for u in (alice, bob, charlie, admin, AnonymousUser())}
    assert seen == {"alice": 1, "bob": 1, "charlie": 0, "admin": 1, "AnonymousUser": 0}


def test_a_dismissed_admin_sees_nothing(project: Project, admin: User) -> None:
    admin.is_active = False
    admin.save()
    assert not Project.objects.visible_to(admin).exists()
    assert services.role_of(admin, project) is None


def test_a_member_whose_account_was_ended_has_no_role(project: Project, bob: User) -> None:
    bob.is_active = False
    bob.save()
    assert services.role_of(bob, project) is None


def test_roles_go_from_viewer_to_owner(project: Project, alice: User, bob: User, charlie: User, admin: User) -> None:
    roles = [services.role_of(u, project) for u in (alice, bob, charlie, admin)]
    assert roles == [Role.OWNER, Role.MEMBER, None, Role.OWNER]
    assert [services.may_submit(r) for r in (None, Role.VIEWER, Role.MEMBER, Role.OWNER)] == [False, False, True, True]
    assert [services.may_manage(r) for r in (None, Role.VIEWER, Role.MEMBER, Role.OWNER)] == [False, False, False, True]


def test_only_owners_share(project: Project, bob: User, charlie: User) -> None:
    with pytest.raises(Refused, match="Only owners"):
        services.share(bob, project, "charlie", Role.VIEWER)
    assert services.role_of(charlie, project) is None


def test_a_member_cannot_make_themselves_an_owner(project: Project, bob: User) -> None:
    with pytest.raises(Refused, match="Only owners"):
        services.change_role(bob, Membership.objects.get(project=project, user=bob), Role.OWNER)
    assert services.role_of(bob, project) == Role.MEMBER


@pytest.mark.parametrize("name", ["bob", "bob@lab.example"])
def test_an_account_that_was_ended_gets_no_role(project: Project, alice: User, bob: User, name: str) -> None:
    services.unshare(alice, Membership.objects.get(project=project, user=bob))
    User.objects.filter(pk=bob.pk).update(is_active=False)
    with pytest.raises(Refused, match="Ask an admin to invite them"):
        services.share(alice, project, name, Role.VIEWER)
    assert not Membership.objects.filter(project=project, user=bob).exists()


def test_sharing_again_changes_the_role(project: Project, alice: User, bob: User) -> None:
    services.share(alice, project, "bob@LAB.example", Role.VIEWER)
    assert services.role_of(bob, project) == Role.VIEWER
    assert project.memberships.count() == 2


@pytest.mark.parametrize("act", ["leave", "demote", "share"])
def test_the_last_owner_stays(project: Project, alice: User, act: str) -> None:
    own = Membership.objects.get(project=project, user=alice)
    with pytest.raises(Refused, match="last owner"):
        if act == "leave":
            services.unshare(alice, own)
        elif act == "demote":
            services.change_role(alice, own, Role.MEMBER)
        else:
            services.share(alice, project, "alice", Role.VIEWER)
    assert services.role_of(alice, project) == Role.OWNER


def test_an_owner_may_leave_once_there_is_another(project: Project, alice: User, bob: User) -> None:
    services.share(alice, project, "bob", Role.OWNER)
    services.unshare(alice, Membership.objects.get(project=project, user=alice))
    assert services.role_of(alice, project) is None


def test_a_member_may_leave_but_not_send_others_away(project: Project, alice: User, bob: User) -> None:
    with pytest.raises(Refused):
        services.unshare(bob, Membership.objects.get(project=project, user=alice))
    services.unshare(bob, Membership.objects.get(project=project, user=bob))
    assert services.role_of(bob, project) is None


@pytest.mark.parametrize("name", ["", "   ", "x" * 81, "a\0b"])
def test_a_project_needs_a_name(alice: User, name: str) -> None:
    with pytest.raises(Refused):
        services.create_project(alice, name)
    assert not Project.objects.exists()


# Code


def test_versions_are_numbered_and_named_by_their_content(project: Project, alice: User, bob: User) -> None:
    first = services.store_code(alice, project, script(), note="first")
    second = services.store_code(bob, project, script("print(2)\n"))
    again = services.store_code(bob, project, script())
    assert [v.number for v in (first, second, again)] == [1, 2, 3]
    assert first.sha256 == again.sha256 != second.sha256
    assert len(list(store.folder().glob("*.tar"))) == 2
    assert first.files[0]["path"] == "train.py"
    assert (first.upload_name, first.note, first.created_by) == ("train.py", "first", alice)


def test_one_set_of_files_has_one_hash_whatever_it_came_in(alice: User) -> None:
    files = {"lib/data.py": b"x = 1\n", "train.py": b"import lib.data\n"}
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        for name, content in files.items():
            archive.writestr("top/" + name, content)
    with tarfile.open(fileobj=tarred, mode="w:gz") as archive:
        for name, content in reversed(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uid = len(content), 12345, 1000
            archive.addfile(info, io.BytesIO(content))
    uploads = [
        [("code.zip", io.BytesIO(zipped.getvalue()))],
        [("code.tgz", io.BytesIO(tarred.getvalue()))],
        [("my folder/" + name, io.BytesIO(content)) for name, content in files.items()],
    ]
    versions = [services.store_code(alice, services.create_project(alice, "Each"), upload) for upload in uploads]
    assert len({v.sha256 for v in versions}) == 1
    assert [v.upload_name for v in versions] == ["code.zip", "code.tgz", "my folder/"]
    with tarfile.open(store.path_of(versions[0].sha256)) as archive:
        members = {m.name: (m.type, m.mode, m.uid, m.mtime) for m in archive}
    assert members == {
        "lib": (tarfile.DIRTYPE, 0o755, 0, 0),
        "lib/data.py": (tarfile.REGTYPE, 0o644, 0, 0),
        "train.py": (tarfile.REGTYPE, 0o644, 0, 0),
    }


def test_files_are_read_straight_from_the_tar(project: Project, alice: User) -> None:
    uploads = [("p/a.py", io.BytesIO(b"a" * 1000)), ("p/ü/" + "b" * 120 + ".bin", io.BytesIO(bytes(range(256)) * 9))]
    version = services.store_code(alice, project, uploads)
    assert store.read_file(version, "a.py", 10) == b"a" * 10
    assert b"".join(store.open_file(version, "ü/" + "b" * 120 + ".bin")) == bytes(range(256)) * 9
    for path in ("missing.py", "../a.py", "ü", ""):
        with pytest.raises(store.MissingError):
            store.read_file(version, path, 10)


@pytest.mark.parametrize("role", [None, Role.VIEWER])
def test_strangers_and_viewers_store_no_code(project: Project, alice: User, charlie: User, role: Role | None) -> None:
    if role:
        services.share(alice, project, "charlie", role)
    with pytest.raises(Refused, match="Only members"):
        services.store_code(charlie, project, script())
    assert not CodeVersion.objects.exists() and not (list(store.folder().iterdir()))


def test_an_archived_project_takes_no_code_until_it_is_taken_out_again(project: Project, alice: User) -> None:
    services.archive_project(alice, project)
    with pytest.raises(Refused, match="archived"):
        services.store_code(alice, project, script())
    services.unarchive_project(alice, project)
    assert services.store_code(alice, project, script()).number == 1


def test_archiving_while_an_upload_is_unpacked_wins(
    project: Project, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(sha256: str) -> dict[str, object]:
        services.archive_project(alice, Project.objects.get(pk=project.pk))
        return {}

    monkeypatch.setattr(services.inspection, "inspect", meanwhile)
    with pytest.raises(Refused, match="archived"):
        services.store_code(alice, project, script())
    assert not CodeVersion.objects.exists()


def test_an_upload_over_the_limit_is_refused_before_it_is_unpacked(
    project: Project, alice: User, settings: Any
) -> None:
    settings.MAX_UPLOAD_MIB = 1
    with pytest.raises(BadArchiveError, match="larger than 1 MiB"):
        services.store_code(alice, project, script("#" * (1024 * 1024 + 1)))


def test_an_upload_without_files_is_refused(project: Project, alice: User) -> None:
    with pytest.raises(BadArchiveError, match="Choose"):
        services.store_code(alice, project, [])


def test_a_notebook_becomes_a_script(project: Project, alice: User) -> None:
    cells = '{"cell_type": "code", "execution_count": null, "metadata": {}, "outputs": [], "source": "%s"}'
    cells = ", ".join(cells % source for source in ["!pip install x\\nprint(1)", "%%bash\\nls"])
    notebook = '{"cells": [' + cells + '], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
    version = services.store_code(alice, project, script(notebook, "my first.ipynb"))
    text = store.read_file(version, "my first.py", 10_000).decode()
    assert "# !pip install x\nprint(1)\n" in text and "subprocess.run(['bash', '-c', 'ls'], check=True)" in text
    assert version.guess["entry"] == "my first.py"


# The gallery


@pytest.mark.parametrize("example", examples.all_examples(), ids=lambda example: example.key)
def test_using_an_example_twice_adds_nothing_the_second_time(example: examples.Example, alice: User) -> None:
    version = services.use_example(alice, example)
    assert services.use_example(alice, example) == version
    assert version.project.name == services.EXAMPLES and services.role_of(alice, version.project) == Role.OWNER
    assert "gallery.toml" not in {entry["path"] for entry in version.files}


@pytest.mark.parametrize("example", examples.all_examples(), ids=lambda example: example.key)
def test_the_guess_about_an_example_matches_its_description(example: examples.Example, alice: User) -> None:
    guess = services.use_example(alice, example).guess
    file = example.entry.removeprefix("python ")
    assert (guess["launcher"], guess["entry"], guess["elastic"]) == (example.launcher, file, example.elastic)
    assert guess["warnings"] == []


def test_an_example_can_go_into_a_shared_project(project: Project, alice: User, bob: User, charlie: User) -> None:
    example = examples.all_examples()[0]
    assert services.use_example(bob, example, project) == services.use_example(alice, example, project)
    with pytest.raises(Refused):
        services.use_example(charlie, example, project)
    assert not Project.objects.filter(created_by=charlie).exists()


# Differences


def changes(
    project: Project, alice: User, old: dict[str, bytes], new: dict[str, bytes]
) -> dict[str, comparison.Change]:
    versions = [
        services.store_code(alice, project, [("top/" + name, io.BytesIO(content)) for name, content in files.items()])
        for files in (old, new)
    ]
    return {change.path: change for change in comparison.compare(*versions)}


def test_a_difference_names_what_came_went_and_changed(project: Project, alice: User) -> None:
    old = {"same.py": b"x\n", "gone.py": b"old\n", "train.py": b"a\nb\nc\n", "data.bin": b"\0\1"}
    new = {"same.py": b"x\n", "new.py": b"one\ntwo\n", "train.py": b"a\nB\nc\n", "data.bin": b"\0\2"}
    found = changes(project, alice, old, new)
    assert {path: (c.kind, c.added, c.removed) for path, c in found.items()} == {
        "data.bin": ("changed", 0, 0),
        "gone.py": ("removed", 0, 1),
        "new.py": ("added", 2, 0),
        "train.py": ("changed", 1, 1),
    }
    assert [(line.kind, line.text) for line in found["train.py"].lines[1:5]] == [
        ("same", "a"), ("removed", "b"), ("added", "B"), ("same", "c"),
    ]  # fmt: skip
    assert "not text" in found["data.bin"].remark


def test_a_large_text_is_called_large_even_when_the_cut_goes_through_a_character(project: Project, alice: User) -> None:
    text = "ü".encode() * comparison.MAX_TEXT_BYTES
    assert "larger" in changes(project, alice, {"a.txt": b"1"}, {"a.txt": b"1\n" + text})["a.txt"].remark


def test_files_made_to_be_slow_are_not_compared(project: Project, alice: User) -> None:
    lines = [f"{number % 170}\n" for number in range(4900)]
    found = changes(
        project,
        alice,
        {"a.txt": "".join(lines).encode(), "b": b"1"},
        {"a.txt": "".join(lines[::-1]).encode(), "b": b"2"},
    )
    assert "too long" in found["a.txt"].remark
    assert found["b"].added == 1


@pytest.mark.parametrize(
    "again",
    [
        [("train.py", b"print(1)\n")],
        [("folder/train.py", b"print(1)\n")],
        [("folder/train.py", b"print(1)\n"), ("folder/.git/HEAD", b"ref\n")],
    ],
)
def test_files_that_equal_the_newest_version_make_no_other(
    alice: User, bob: User, project: Project, again: list[tuple[str, bytes]]
) -> None:
    first = services.store_code(alice, project, script(), note="first")
    same = services.store_code(bob, project, [(name, io.BytesIO(data)) for name, data in again], note="again")
    assert first.is_new and not same.is_new
    assert (same.pk, same.note, same.created_by) == (first.pk, "first", alice)
    assert services.store_code(bob, project, script("print(2)\n")).is_new
    back = services.store_code(bob, project, script())
    assert back.is_new and back.number == 3, "an older version may be uploaded again"
