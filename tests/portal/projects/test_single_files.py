"""Single files are put into the newest version: a corrected line needs no new upload of everything."""

import io
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from portal.accounts.models import User
from portal.projects import services, store
from portal.projects.models import CodeVersion, Project
from tests import corpus
from tests.portal.jobs_world import make_user

pytestmark = pytest.mark.django_db
FILES = {"train.py": b"1", "data/rows.csv": b"a,b", "lib/model.py": b"2", "lib/util.py": b"3", "old/util.py": b"4"}
CHECKPOINT = corpus.zip_tree({"latest/data.pkl": b"weights"})
"""PyTorch saves zips, which are not unpacked beside code: docs/how-to/resume-pytorch.md continues from one."""


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    project = services.create_project(alice, "digits")
    services.store_code(alice, project, [("code.zip", io.BytesIO(corpus.zip_tree(FILES)))])
    return project


def upload(user: User, project: Project, files: dict[str, bytes], **more: Any) -> CodeVersion:
    uploads = [(name, io.BytesIO(content)) for name, content in files.items()]
    return services.store_code(user, project, uploads, **{"keep_others": True} | more)


def content(version: CodeVersion) -> dict[str, bytes]:
    return {file["path"]: store.read_file(version, file["path"], 1000) for file in version.files}


@pytest.mark.parametrize(
    ("files", "changed", "notes"),
    [
        ({"train.py": b"new"}, {"train.py": b"new"}, ["Kept 4 other files of version 1."]),
        ({"more.py": b"5"}, {"more.py": b"5"}, ["Kept 5 other files of version 1."]),
        (
            {"model.py": b"new"},
            {"lib/model.py": b"new"},
            ["“lib/model.py” was replaced.", "Kept 4 other files of version 1."],
        ),
        ({"util.py": b"new"}, {"util.py": b"new"}, ["Kept 5 other files of version 1."]),
        ({"train.py": b"x", "rows.csv": b"c"}, {"train.py": b"x", "data/rows.csv": b"c"}, None),
        ({"rows.csv": b"c"}, {"data/rows.csv": b"c"}, None),
        ({"latest.pt": CHECKPOINT}, {"latest.pt": CHECKPOINT}, ["Kept 5 other files of version 1."]),
        ({"try.ipynb": corpus.notebook("print(1)")}, {"try.py": b"# %%\nprint(1)\n"}, None),
    ],
)
def test_single_files_keep_the_others(
    alice: User, project: Project, files: dict[str, bytes], changed: dict[str, bytes], notes: list[str] | None
) -> None:
    version = upload(alice, project, files)
    assert content(version) == FILES | changed
    if notes is not None:
        assert version.guess["notes"] == notes


@pytest.mark.parametrize(
    ("files", "kept"),
    [
        ({"code.zip": corpus.zip_tree({"a.py": b"1"})}, {"a.py": b"1"}),
        ({"top/a.py": b"1"}, {"a.py": b"1"}),
    ],
)
def test_archives_and_folders_are_whole(
    alice: User, project: Project, files: dict[str, bytes], kept: dict[str, bytes]
) -> None:
    assert content(upload(alice, project, files)) == kept


def test_the_others_may_be_left_out(alice: User, project: Project) -> None:
    assert content(upload(alice, project, {"train.py": b"new"}, keep_others=False)) == {"train.py": b"new"}


def test_the_first_upload_has_nothing_to_keep(alice: User) -> None:
    project = services.create_project(alice, "empty")
    version = upload(alice, project, {"train.py": b"1"})
    assert content(version) == {"train.py": b"1"} and version.guess["notes"] == []


def test_a_merged_version_is_the_same_as_one_that_was_uploaded_whole(alice: User, project: Project) -> None:
    whole = services.store_code(
        alice, project, [("code.zip", io.BytesIO(corpus.zip_tree(FILES | {"train.py": b"new"})))]
    )
    services.store_code(alice, project, [("code.zip", io.BytesIO(corpus.zip_tree(FILES)))])
    assert upload(alice, project, {"train.py": b"new"}).sha256 == whole.sha256


def test_executable_files_stay_executable(alice: User) -> None:
    project = services.create_project(alice, "tools")
    run = corpus.info("run", b"echo 1\n", bits=0o755)
    services.store_code(
        alice, project, [("code.tar", io.BytesIO(corpus.tar_of(run, corpus.info("a.sh", b"#!/bin/sh\n"))))]
    )
    version = upload(alice, project, {"train.py": b"1"})
    assert {file["path"]: file.get("executable", False) for file in version.files} == {
        "a.sh": False,  # the archive states that it is not
        "run": True,
        "train.py": False,
    }


@pytest.mark.parametrize(("keep", "name"), [(True, "2 of 6 files"), (False, "2 files")])
def test_an_upload_of_some_files_has_both_numbers(alice: User, project: Project, keep: bool, name: str) -> None:
    version = upload(alice, project, {"train.py": b"new", "added.py": b"new"}, keep_others=keep)
    assert (version.upload_name, len(version.files)) == (name, 6 if keep else 2)


def test_the_page_keeps_them_unless_it_is_asked_not_to(alice: User, project: Project, client: Client) -> None:
    client.force_login(alice)
    url = reverse("projects:upload", args=[project.pk])
    page = client.get(reverse("projects:detail", args=[project.pk])).content.decode()
    assert "Keep the other files of version 1" in page
    for asked, count in (({"keep_others": "1"}, 5), ({}, 1)):
        file = io.BytesIO(b"new")
        file.name = "train.py"
        assert client.post(url, {"files": file, **asked}).status_code == 302
        assert len(project.code_versions.all()[0].files) == count


def test_the_api_keeps_them_when_it_is_asked_to(alice: User, project: Project, client: Client) -> None:
    client.force_login(alice)
    url = f"/api/v1/projects/{project.pk}/code/?name=train.py"
    for asked, count in (("&keep_others=true", 5), ("", 1)):
        answer = client.post(url + asked, b"new", content_type="application/octet-stream")
        assert (answer.status_code, len(answer.json()["files"])) == (201, count)
    wrong = client.post(f"{url}&keep_others=perhaps", b"new", content_type="application/octet-stream")
    assert wrong.status_code == 400 and "keep_others" in wrong.content.decode()
