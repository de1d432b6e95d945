"""What ``.gitignore`` names is left out on request, as git itself would leave it out."""

import io
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from portal import sandbox
from portal.accounts.models import User
from portal.projects import services
from portal.projects.errors import BadArchiveError
from portal.projects.models import Project
from tests import corpus

FILES = {
    ".gitignore": b"*.ckpt\n/data/\n!keep.ckpt\nruns/\n# comment\nnotes[0-9].txt\nlogs/**/*.txt\n\\!odd\n",
    "train.py": b"1",
    "best.ckpt": b"2",
    "keep.ckpt": b"3",
    "data/a.csv": b"4",
    "src/data/a.csv": b"5",
    "src/runs/1/out.txt": b"6",
    "src/.gitignore": b"!important.ckpt\ngenerated.py\n",
    "src/important.ckpt": b"7",
    "src/generated.py": b"8",
    "generated.py": b"9",
    "notes1.txt": b"10",
    "notesx.txt": b"11",
    "logs/a/b/c.txt": b"12",
    "runs/.gitignore": b"!*\n",
    "runs/kept.txt": b"13",
    "!odd": b"14",
}


@pytest.fixture
def alice(db: None) -> User:
    return User.objects.create_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    return services.create_project(alice, "Vision")


def store(
    user: User, project: Project, files: dict[str, bytes], *, gitignore: bool = True
) -> tuple[set[str], list[str]]:
    archive = [("code.zip", io.BytesIO(corpus.zip_tree(files)))]
    version = services.store_code(user, project, archive, gitignore=gitignore)
    return {entry["path"] for entry in version.files}, version.guess["notes"]


def test_the_same_files_are_left_out_as_git_leaves_out(alice: User, project: Project, tmp_path: Path) -> None:
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    wanted = set(
        subprocess.run(listed, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split("\0")
    ) - {""}
    kept, notes = store(alice, project, FILES)
    assert kept == wanted and "train.py" in kept and "best.ckpt" not in kept
    assert notes == [
        "Left out, since .gitignore names them: “!odd”, “best.ckpt”, “data/a.csv”, “logs/a/b/c.txt”, “notes1.txt” and 4 more."
    ]


def test_only_on_request(alice: User, project: Project) -> None:
    assert store(alice, project, FILES, gitignore=False)[0] == set(FILES)


def test_in_the_folder_that_is_taken_off(alice: User, project: Project) -> None:
    kept, _ = store(alice, project, {f"repo-main/{name}": data for name, data in FILES.items()})
    assert "train.py" in kept and "best.ckpt" not in kept and "data/a.csv" not in kept


def test_an_upload_without_one_is_whole_with_a_note(alice: User, project: Project) -> None:
    kept, notes = store(alice, project, {"a.py": b"1", "b.py": b"2"})
    assert kept == {"a.py", "b.py"} and notes == ["No .gitignore was found, so nothing was left out for one."]


@pytest.mark.parametrize("content", [b"x" * 70_000, b"x\n" * 3000], ids=["too large", "too many lines"])
def test_one_that_is_none_is_refused(alice: User, project: Project, content: bytes) -> None:
    with pytest.raises(BadArchiveError, match=r"\.gitignore"):
        store(alice, project, {"a.py": b"1", ".gitignore": content})


def test_patterns_that_take_for_ever_end_with_the_limits(
    alice: User, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "UPLOADS", replace(sandbox.UPLOADS, seconds=3))
    with pytest.raises(BadArchiveError, match="within the limits of time"):
        store(alice, project, {".gitignore": b"a*" * 60 + b"b\n", "a" * 200: b"1", "train.py": b"2"})


def test_the_page_and_the_api_pass_it_on(alice: User, project: Project, client: Client) -> None:
    client.force_login(alice)
    assert "Leave out what the .gitignore" in client.get(reverse("projects:detail", args=[project.pk])).content.decode()
    small = {".gitignore": b"*.bin\n", "a.py": b"1", "b.bin": b"2"}
    file = io.BytesIO(corpus.zip_tree(small))
    file.name = "code.zip"
    client.post(reverse("projects:upload", args=[project.pk]), {"files": file, "gitignore": "1"})
    assert [entry["path"] for entry in project.code_versions.all()[0].files] == [".gitignore", "a.py"]
    url = f"/api/v1/projects/{project.pk}/code/?name=code.zip"
    for asked, status, count in (("&gitignore=true", 200, 2), ("", 201, 3)):
        answer = client.post(url + asked, corpus.zip_tree(small), content_type="application/octet-stream")
        assert (answer.status_code, len(answer.json()["files"])) == (status, count)
        assert answer.json()["is_new"] is (status == 201), "with the same choice, the files equal those of the page"
