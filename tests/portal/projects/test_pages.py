"""The pages of projects, as a browser uses them: Alice owns, Bob is a member, Victor looks, Charlie is a stranger."""

import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from portal.accounts.models import User
from portal.projects import examples, services, store
from portal.projects.models import CodeVersion, Membership, Project
from portal.projects.services import Role
from tests import corpus
from tests.laws.people import make_people
from tests.portal.files import plain_lines, without_colours

pytestmark = pytest.mark.django_db
EVERYBODY = ("alice", "bob", "victor", "charlie", "ada")


@pytest.fixture(autouse=True)
def own_home(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path


@pytest.fixture
def people() -> dict[str, User]:
    return make_people()


@pytest.fixture
def project(people: dict[str, User]) -> Project:
    made = services.create_project(people["alice"], "Vision <b>", "About & more")
    services.share(people["alice"], made, "bob", Role.MEMBER)
    services.share(people["alice"], made, "victor", Role.VIEWER)
    return made


@pytest.fixture
def version(project: Project, people: dict[str, User]) -> CodeVersion:
    return store_code(project, people["alice"], {"train.py": b"print('<script>')\n", "lib/net.py": b"x = 1\n"})


def store_code(project: Project, user: User, files: dict[str, bytes]) -> CodeVersion:
    return services.store_code(user, project, [(f"top/{name}", io.BytesIO(data)) for name, data in files.items()])


def as_(user: User | None, **options: Any) -> Client:
    client = Client(**options)
    if user is not None:
        client.force_login(user)
    return client


def send(client: Client, project: Project, *files: tuple[str, bytes], scripted: bool = True, **fields: str) -> Any:
    data = {"files": [SimpleUploadedFile(name.rpartition("/")[2], content) for name, content in files], **fields}
    if scripted:
        data["paths"] = json.dumps([name for name, _ in files])
    headers = {"Accept": "application/json"} if scripted else {}
    return client.post(reverse("projects:upload", args=[project.pk]), data, headers=headers)


# Who gets in


def test_every_page_is_there_for_members_only(version: CodeVersion, people: dict[str, User]) -> None:
    pk = version.project_id
    pages = [
        reverse("projects:detail", args=[pk]),
        reverse("projects:code", args=[pk, 1]),
        reverse("projects:changes", args=[pk, 1]),
        reverse("projects:download", args=[pk, 1]),
        reverse("projects:file", args=[pk, 1]) + "?path=train.py",
    ]
    for page in pages:
        assert as_(None).get(page).status_code == 302, page
        codes = {name: as_(people[name]).get(page).status_code for name in EVERYBODY}
        assert codes == {"alice": 200, "bob": 200, "victor": 200, "charlie": 404, "ada": 200}, page


@pytest.mark.parametrize("what", ["edit", "archive", "unarchive", "share", "change-role", "remove-member", "upload"])
def test_what_changes_a_project_is_not_there_for_those_who_may_not(
    what: str, version: CodeVersion, people: dict[str, User]
) -> None:
    alices = Membership.objects.get(project=version.project, user=people["alice"])
    args = [version.project_id, alices.pk] if what in ("change-role", "remove-member") else [version.project_id]
    page = reverse(f"projects:{what}", args=args)
    data = {"name": "x", "username": "charlie", "role": "viewer"}
    assert as_(None).post(page, data).status_code == 302
    assert as_(people["charlie"]).post(page, data).status_code == 404
    expected = 403 if what == "upload" else 404  # viewers see the project, so they get the reason
    assert as_(people["victor"]).post(page, data, headers={"Accept": "application/json"}).status_code == expected
    if what != "upload":
        assert as_(people["bob"]).post(page, data).status_code == 404
    version.project.refresh_from_db()
    assert version.project.name == "Vision <b>" and version.project.archived_at is None
    assert version.project.memberships.count() == 3 and CodeVersion.objects.count() == 1


def test_a_number_of_another_project_leads_nowhere(version: CodeVersion, people: dict[str, User]) -> None:
    other = services.create_project(people["charlie"], "Charlie's")
    assert as_(people["charlie"]).get(reverse("projects:code", args=[other.pk, 1])).status_code == 404
    foreign = Membership.objects.get(project=version.project, user=people["bob"])
    page = reverse("projects:remove-member", args=[other.pk, foreign.pk])
    assert as_(people["charlie"]).post(page).status_code == 404
    assert Membership.objects.filter(pk=foreign.pk).exists()


@pytest.mark.parametrize("number", [0, 10**17, 10**25])
def test_numbers_that_no_row_has_lead_nowhere(number: int, people: dict[str, User], project: Project) -> None:
    client = as_(people["ada"])
    assert client.get(f"/projects/{number}/").status_code == 404
    assert client.get(f"/projects/{project.pk}/code/{number}/").status_code == 404
    assert client.get(f"/projects/{number}/code/{number}/changes").status_code == 404
    assert client.post(f"/projects/{project.pk}/members/{number}/remove").status_code == 404


# Projects and members


def test_a_project_is_made_shared_and_archived_in_the_browser(people: dict[str, User]) -> None:
    alice = as_(people["alice"])
    page = alice.post(reverse("projects:new"), {"name": "  Speech   models ", "description": ""}, follow=True)
    project = Project.objects.get(name="Speech models")
    assert "Speech models" in page.content.decode()
    alice.post(reverse("projects:share", args=[project.pk]), {"username": "bob@example.org", "role": "member"})
    assert services.role_of(people["bob"], project) == Role.MEMBER
    bobs = project.memberships.get(user=people["bob"])
    alice.post(reverse("projects:change-role", args=[project.pk, bobs.pk]), {"role": "viewer"})
    assert services.role_of(people["bob"], project) == Role.VIEWER
    left = as_(people["bob"]).post(reverse("projects:remove-member", args=[project.pk, bobs.pk]))
    assert left["Location"] == reverse("projects:list") and services.role_of(people["bob"], project) is None
    alice.post(reverse("projects:archive", args=[project.pk]))
    assert "archived" in alice.get(reverse("projects:detail", args=[project.pk])).content.decode()
    assert "Speech" not in alice.get(reverse("projects:list")).content.decode()
    assert "Speech" in alice.get(reverse("projects:list") + "?show=archived").content.decode()


def test_an_owner_reaches_every_member(project: Project, people: dict[str, User]) -> None:
    many = User.objects.bulk_create(User(username=f"student{n}", email=f"s{n}@example.org") for n in range(150))
    Membership.objects.bulk_create(Membership(project=project, user=user) for user in many)
    page = as_(people["alice"]).get(reverse("projects:detail", args=[project.pk])).content.decode()
    assert "Remove student149" in page


def test_a_refusal_is_shown_beside_its_input(project: Project, people: dict[str, User]) -> None:
    alice = as_(people["alice"])
    page = alice.post(reverse("projects:share", args=[project.pk]), {"username": "unknown", "role": "member"})
    assert page.status_code == 400 and "There is no user with this name" in page.content.decode()
    page = alice.post(reverse("projects:new"), {"name": ""})
    assert page.status_code == 400
    own = project.memberships.get(user=people["alice"])
    page = alice.post(reverse("projects:remove-member", args=[project.pk, own.pk]), follow=True)
    assert "last owner" in page.content.decode()


def test_leaving_is_offered_to_all_but_the_only_owner(project: Project, people: dict[str, User]) -> None:
    def buttons(name: str) -> list[str]:
        return re.findall(
            r'aria-label="(Leave the project|Remove [^"]+)"',
            as_(people[name]).get(reverse("projects:detail", args=[project.pk])).content.decode(),
        )

    assert buttons("alice") == ["Remove bob", "Remove victor"] and buttons("bob") == ["Leave the project"]
    services.share(people["alice"], project, "bob", Role.OWNER)
    assert buttons("alice") == ["Leave the project", "Remove bob", "Remove victor"]


def test_a_project_without_an_active_owner_names_the_next_step(project: Project, people: dict[str, User]) -> None:
    address = reverse("projects:detail", args=[project.pk])
    assert "No active user owns this project" not in as_(people["bob"]).get(address).content.decode()
    User.objects.filter(username="alice").update(is_active=False)
    assert "Ask an admin to make a member an owner." in as_(people["bob"]).get(address).content.decode()
    assert "Make a member an owner." in as_(people["ada"]).get(address).content.decode()


def test_the_list_finds_by_words_and_by_role(people: dict[str, User]) -> None:
    for name in ("Vision", "Speech", "Vision two"):
        services.create_project(people["alice"], name)
    bob = services.create_project(people["bob"], "Vision of Bob")
    services.share(people["bob"], bob, "alice", Role.VIEWER)
    client = as_(people["alice"])

    def names(query: str) -> set[str]:
        return {project.name for project in client.get(reverse("projects:list") + query).context["page"].object_list}

    assert names("?q=vision") == {"Vision", "Vision two", "Vision of Bob"}
    assert names("?show=mine") == {"Vision", "Speech", "Vision two"}
    assert names("?q=bob") == {"Vision of Bob"}
    assert names("?q=nothing-like-it") == set()
    assert names("?page=999") == {"Vision", "Speech", "Vision two", "Vision of Bob"}


def test_lists_take_the_same_queries_for_one_row_and_for_many(people: dict[str, User]) -> None:
    client = as_(people["alice"])
    project = services.create_project(people["alice"], "P0")
    store_code(project, people["alice"], {"a.py": b"1"})
    pages = [reverse("projects:list"), reverse("projects:detail", args=[project.pk])]

    def queries(page: str) -> int:
        client.get(page)
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert client.get(page).status_code == 200
        return len(captured)

    before = [queries(page) for page in pages]
    for number in range(1, 9):
        more = services.create_project(people["alice"], f"P{number}")
        services.share(people["alice"], more, "bob", Role.MEMBER)
        store_code(project, people["alice"], {"a.py": b"%d" % number})
    services.share(people["alice"], project, "bob", Role.MEMBER)
    services.share(people["alice"], project, "victor", Role.MEMBER)
    assert [queries(page) for page in pages] == before
    assert max(before) <= 12


# Upload


def test_a_script_dropped_in_becomes_a_version(project: Project, people: dict[str, User]) -> None:
    answer = send(as_(people["bob"]), project, ("train.py", b"print(1)\n"), note="first try")
    version = CodeVersion.objects.get()
    assert answer.status_code == 201
    assert answer.json()["url"] == reverse("projects:code", args=[project.pk, 1])
    assert (version.created_by, version.note, version.upload_name) == (people["bob"], "first try", "train.py")


def test_a_folder_keeps_its_paths_and_loses_its_top(project: Project, people: dict[str, User]) -> None:
    files = [("my code/train.py", b"import lib.net\n"), ("my code/lib/net.py", b""), ("my code/.git/HEAD", b"x")]
    answer = send(as_(people["bob"]), project, *files)
    assert [entry["path"] for entry in CodeVersion.objects.get().files] == ["lib/net.py", "train.py"]
    page = as_(people["bob"])
    assert answer.status_code == 201 and page.get(answer.json()["url"]).status_code == 200


@pytest.mark.parametrize("paths", ["[]", "{", '["a", 1]', '{"a": 1}', '"a"', "[" * 100_000, '["a.py", "b.py"]'])
def test_paths_that_do_not_match_the_files_are_refused(paths: str, project: Project, people: dict[str, User]) -> None:
    client = as_(people["bob"])
    data = {"files": [SimpleUploadedFile("a.py", b"1")], "paths": paths}
    answer = client.post(reverse("projects:upload", args=[project.pk]), data, headers={"Accept": "application/json"})
    assert answer.status_code == 400 and "do not match" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["x" * 200_000 + ".py", "x" * 253 + ".py"])
def test_a_name_that_no_file_can_have_is_refused_in_words(name: str, project: Project, people: dict[str, User]) -> None:
    client = as_(people["bob"])
    data = {"files": [SimpleUploadedFile("a.py", b"1")], "paths": json.dumps([name])}
    answer = client.post(reverse("projects:upload", args=[project.pk]), data, headers={"Accept": "application/json"})
    assert answer.status_code == 400 and "and pack again." in answer.json()["error"]["message"]


def test_a_long_name_keeps_its_ending(project: Project, people: dict[str, User]) -> None:
    assert send(as_(people["bob"]), project, ("x" * 230 + ".py", b"1")).status_code == 201


def test_a_plain_form_uploads_too_and_shows_the_refusal_in_place(project: Project, people: dict[str, User]) -> None:
    client = as_(people["bob"])
    answer = send(client, project, ("code.zip", corpus.raw_zip(corpus.Part("../evil.py"))), scripted=False)
    page = answer.content.decode()
    assert answer.status_code == 400 and "../evil.py" in page and 'role="alert" data-error>' in page
    answer = send(client, project, ("code.zip", corpus.zip_tree({"p/train.py": b"1"})), scripted=False)
    assert answer.status_code == 302
    assert "was removed" in client.get(answer["Location"]).content.decode()


def test_an_equal_upload_shows_that_its_note_is_not_stored(project: Project, people: dict[str, User]) -> None:
    client, address = as_(people["bob"]), reverse("projects:upload", args=[project.pk])
    for note, lost in (("first  try", False), ("first try", False), ("", False), ("another", True)):
        file = SimpleUploadedFile("train.py", b"print(7)")
        page = client.post(address, {"files": file, "note": note}, follow=True).content.decode()
        assert ("yours is not stored" in page) is lost, note
    assert [version.note for version in project.code_versions.all()] == ["first try"]


def test_an_upload_needs_the_forms_token(project: Project, people: dict[str, User]) -> None:
    client = as_(people["bob"], enforce_csrf_checks=True)
    assert send(client, project, ("a.py", b"1")).status_code == 403
    assert not CodeVersion.objects.exists()


def test_an_upload_that_is_announced_as_too_large_is_not_even_parsed(
    project: Project, people: dict[str, User], settings: Any
) -> None:
    settings.MAX_UPLOAD_MIB = 1
    answer = as_(people["bob"]).generic(
        "POST",
        reverse("projects:upload", args=[project.pk]),
        b"x" * (18 * 1024 * 1024),
        "multipart/form-data; boundary=b",
    )
    assert answer.status_code == 413 and "larger than 1 MiB" in answer.json()["error"]["message"]


# Files, changes, downloads


def test_what_users_wrote_is_shown_as_text(version: CodeVersion, people: dict[str, User]) -> None:
    page = as_(people["victor"]).get(reverse("projects:code", args=[version.project_id, 1])).content.decode()
    assert "print('<script>')" in without_colours(page) and "<script>')" not in page
    assert 'id="L1"' in page


def test_folders_and_files_are_browsed_by_their_path(version: CodeVersion, people: dict[str, User]) -> None:
    client = as_(people["bob"])
    at = reverse("projects:code", args=[version.project_id, 1])
    assert [item.name for item in client.get(at).context["items"]] == ["lib", "train.py"]
    assert [item.name for item in client.get(at + "?path=lib").context["items"]] == ["net.py"]
    assert plain_lines(client.get(at + "?path=lib/net.py")) == ["x = 1"]
    for path in ("nothing", "../etc/passwd", "/etc/passwd", "lib/", "LIB"):
        assert client.get(at, {"path": path}).status_code == 404, path
        assert client.get(reverse("projects:file", args=[version.project_id, 1]), {"path": path}).status_code == 404


def test_large_binary_and_odd_files_are_shown_as_what_they_are(project: Project, people: dict[str, User]) -> None:
    files = {
        "a.py": b"1",
        "large.txt": ("ü" * 99 + "\n").encode() * 9000,
        "binary.bin": b"\0\1\2",
        "latin.txt": b"caf\xe9\n",
        "empty.txt": b"",
        "long-line.json": b"[" + b"1," * 99_999,
    }
    store_code(project, people["alice"], files)
    client, at = as_(people["bob"]), reverse("projects:code", args=[project.pk, 1])
    seen = {path: client.get(at, {"path": path}).content.decode() for path in files}
    assert "lines of 1.7 MiB are shown" in seen["large.txt"] and "üüü" in seen["large.txt"]
    assert "Not text" in seen["binary.bin"] and "café" in seen["latin.txt"] and "Windows-1252" in seen["latin.txt"]
    assert "There is nothing in this file" in seen["empty.txt"]
    assert len(seen["long-line.json"]) < 120_000


def test_lines_are_numbered_as_python_numbers_them(project: Project, people: dict[str, User]) -> None:
    store_code(project, people["alice"], {"train.py": b"import os\r\n\x0cx = '\xe2\x80\xa8'\rprint('~/data')\n"})
    page = as_(people["bob"]).get(reverse("projects:code", args=[project.pk, 1]))
    assert plain_lines(page) == ["import os", "\x0cx = '\u2028'", "print('~/data')"]


def test_a_version_whose_bytes_are_lost_is_no_fault_of_the_page(version: CodeVersion, people: dict[str, User]) -> None:
    store.path_of(version.sha256).unlink()
    client = as_(people["alice"])
    for name in ("code", "download", "changes"):
        assert client.get(reverse(f"projects:{name}", args=[version.project_id, 1])).status_code in (200, 404)


def test_a_download_is_the_files_and_never_runs_in_the_browser(version: CodeVersion, people: dict[str, User]) -> None:
    client = as_(people["victor"])
    whole = client.get(reverse("projects:download", args=[version.project_id, 1]))
    with tarfile.open(fileobj=io.BytesIO(b"".join(whole)), mode="r:gz") as archive:
        assert archive.getnames() == ["lib", "lib/net.py", "train.py"]
    one = client.get(reverse("projects:file", args=[version.project_id, 1]), {"path": "train.py"})
    assert b"".join(one) == b"print('<script>')\n"
    for answer in (whole, one):
        assert answer["Content-Disposition"].startswith("attachment;")
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in answer["Content-Security-Policy"]


def test_changes_are_shown_to_the_version_before_or_to_another(version: CodeVersion, people: dict[str, User]) -> None:
    project = version.project
    store_code(project, people["alice"], {"train.py": b"print('<b>')\n", "new.py": b"1\n"})
    store_code(project, people["alice"], {"train.py": b"print('<b>')\n", "new.py": b"2\n"})
    client = as_(people["bob"])
    page = client.get(reverse("projects:changes", args=[project.pk, 3]))
    assert [change.path for change in page.context["changes"]] == ["new.py"]
    page = client.get(reverse("projects:changes", args=[project.pk, 3]) + "?from=1")
    assert [change.path for change in page.context["changes"]] == ["lib/net.py", "new.py", "train.py"]
    assert "&lt;b&gt;" in page.content.decode() and "<b>'" not in page.content.decode()
    for odd in ("?from=9", "?from=-1", "?from=x", "?from=" + "9" * 30):
        assert client.get(reverse("projects:changes", args=[project.pk, 3]) + odd).status_code == 404


# The gallery


def test_an_example_is_looked_at_and_copied(people: dict[str, User]) -> None:
    client = as_(people["charlie"])
    assert client.get(reverse("projects:gallery")).status_code == 200
    for example in examples.all_examples():
        assert example.title in client.get(reverse("projects:example", args=[example.key])).content.decode()
    key = examples.all_examples()[0].key
    first = client.post(reverse("projects:copy-example", args=[key]))
    assert client.post(reverse("projects:copy-example", args=[key]))["Location"] == first["Location"]
    assert client.get(first["Location"]).status_code == 200
    assert client.get("/gallery/nothing/").status_code == client.post("/gallery/nothing/copy").status_code == 404


def test_an_example_runs_with_one_click(people: dict[str, User]) -> None:
    from portal.jobs.models import Job

    client = as_(people["charlie"])
    for example in examples.all_examples():
        answer = client.post(reverse("jobs:run-example", args=[example.key]))
        job = Job.objects.latest("pk")
        assert answer["Location"] == reverse("jobs:detail", args=[job.pk]), answer["Location"]
        assert (job.launcher, job.entry, job.min_gpus, job.max_gpus, job.elastic, job.arguments) == (
            example.launcher,
            example.entry,
            example.min_gpus,
            example.max_gpus,
            example.elastic,
            example.arguments,
        )
    assert client.post("/gallery/nothing/run").status_code == 404
    stranger = as_(None).post(reverse("jobs:run-example", args=["failing"]))
    assert stranger["Location"].startswith(reverse("accounts:sign-in"))
