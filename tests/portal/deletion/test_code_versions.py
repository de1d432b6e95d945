"""Deleting code versions: what hinders it, what would break, what comes back, and what is gone after that."""

import io
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.utils import timezone

from portal.accounts.models import AuditEntry, User
from portal.deletion import code_versions, tasks
from portal.jobs import services as jobs
from portal.jobs import trash
from portal.jobs.models import Job, JobState
from portal.jobs.spec import submission_of
from portal.projects import archive, services, store
from portal.projects.git.models import VersionCommit
from portal.projects.models import CodeVersion, Membership, Project
from portal.refused import Refused
from portal.schedules import services as schedules
from portal.schedules.models import Schedule
from portal.sentences.audit import phrase_of
from tests.portal.jobs_world import make_environment, make_job, make_project, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture(autouse=True)
def home(settings: LazySettings, tmp_path: Path) -> Path:
    settings.HOME = tmp_path
    return tmp_path


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    return make_project(alice)


def upload(user: User, project: Project, text: str) -> CodeVersion:
    return services.store_code(user, project, [("train.py", io.BytesIO(text.encode()))])


def ended(project: Project, code: CodeVersion, **fields: Any) -> Job:
    return make_job(project, code=code, state=JobState.SUCCEEDED, finished_at=timezone.now(), **fields)


def schedule(user: User, project: Project, code: CodeVersion | None, name: str = "nightly") -> Schedule:
    return Schedule.objects.create(
        project=project, owner=user, name=name, code=code, environment=make_environment(), launcher="command",
        entry="python train.py", at="02:00", zone="UTC",
    )  # fmt: skip


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def age(home: Path) -> None:
    """Make the stored files as old as if they had been uploaded yesterday."""
    for path in (home / "code").glob("*.tar"):
        os.utime(path, (time.time() - 86_400,) * 2)


def over() -> None:
    CodeVersion.with_deleted.filter(deleted_at__isnull=False).update(erase_at=timezone.now() - timedelta(seconds=1))


class TestWhatStays:
    def test_what_a_job_needs_stays_and_the_page_names_them(self, alice: User, project: Project) -> None:
        first, second, third = (upload(alice, project, f"print({number})") for number in range(3))
        waiting = make_job(project, code=first)
        held = make_job(project, code=first, state=JobState.HELD, intent=Job.Intent.HOLD)
        kept = trash.keep(alice, ended(project, second))
        client = client_of(alice)
        page = client.get(f"/projects/{project.pk}/code/delete?version=1&version=2&version=3").content.decode()
        assert f"Jobs {waiting.pk} and {held.pk} have not ended." in page and f"Job {kept.pk} is kept." in page
        assert "No job uses it." in page
        client.post(f"/projects/{project.pk}/code/delete", {"version": [1, 2, 3]})
        assert [row.number for row in CodeVersion.objects.order_by("number")] == [1, 2]
        assert client.delete(f"/api/v1/projects/{project.pk}/code/2/").status_code == 409
        trash.stop_keeping(alice, kept)
        assert client.delete(f"/api/v1/projects/{project.pk}/code/2/").status_code == 204
        entry = AuditEntry.objects.filter(action="code.delete").first()
        assert entry is not None and phrase_of(entry.action, entry.before, entry.after).values == {
            "versions": "version 2"
        }
        assert entry.target == f"project {project.pk} digits" and third.number == 3

    def test_many_jobs_are_counted(self, alice: User, project: Project) -> None:
        code = upload(alice, project, "print(1)")
        numbers = [make_job(project, code=code).pk for _ in range(7)]
        [use] = code_versions.uses_of(alice, project, [code])
        assert use.hindrance == f"Jobs {', '.join(map(str, numbers[:5]))} and 2 others have not ended."

    def test_a_job_that_starts_after_another_keeps_its_code(self, alice: User, project: Project) -> None:
        code = upload(alice, project, "print(1)")
        parent = ended(project, upload(alice, project, "print(2)"))
        child = make_job(project, code=code, after=parent, ready_at=timezone.now())
        [refused] = code_versions.delete(alice, project, [1]).refused
        assert refused.hindrance == f"Job {child.pk} has not ended."

    def test_schedules_keep_their_version_and_the_last_one(self, alice: User, project: Project) -> None:
        one, two = upload(alice, project, "print(1)"), upload(alice, project, "print(2)")
        schedule(alice, project, one, "pinned")
        schedule(alice, project, None, "newest")
        result = code_versions.delete(alice, project, [1, 2])
        assert [row.number for row in result.deleted] == [2]
        assert [use.hindrance for use in result.refused] == ["The schedule pinned needs it."]
        Schedule.objects.filter(name="pinned").delete()
        [refused] = code_versions.delete(alice, project, [1]).refused
        assert "newest submits the newest version, and none would be left" in refused.hindrance
        code_versions.restore(alice, CodeVersion.with_deleted.get(pk=two.pk))
        assert [use.hindrance != "" for use in code_versions.delete(alice, project, [1, 2]).refused] == [True, True]

    def test_all_that_no_job_uses(self, alice: User, project: Project) -> None:
        for number in range(5):
            upload(alice, project, f"print({number})")
        ended(project, CodeVersion.objects.get(number=2))
        schedule(alice, project, CodeVersion.objects.get(number=4))
        client = client_of(alice)
        page = client.get(f"/projects/{project.pk}/code/delete?unused=1").content.decode()
        assert "Delete 2 code versions" in page
        answer = client.post(
            f"/api/v1/projects/{project.pk}/code/deletion/", {"unused": True}, content_type="application/json"
        )
        assert answer.json() == {"deleted": [1, 3], "refused": []}
        assert client.get(f"/projects/{project.pk}/code/delete?unused=1").status_code == 302


class TestWho:
    def test_a_member_deletes_own_uploads_and_an_owner_all(self, alice: User, project: Project) -> None:
        bob, victor, charlie, ada = (make_user(name) for name in ("bob", "victor", "charlie", "ada"))
        User.objects.filter(pk=ada.pk).update(is_staff=True)
        for user, role in ((bob, "member"), (victor, "viewer")):
            Membership.objects.create(project=project, user=user, role=role)
        upload(alice, project, "print(1)")
        upload(bob, project, "print(2)")
        for user, status in ((victor, 403), (charlie, 404), (bob, 403)):
            assert client_of(user).delete(f"/api/v1/projects/{project.pk}/code/1/").status_code == status
        assert client_of(bob).delete(f"/api/v1/projects/{project.pk}/code/2/").status_code == 204
        row = CodeVersion.with_deleted.get(number=2)
        for user in (victor, charlie):
            client = client_of(user)
            assert client.get("/api/v1/trash/code/").json()["results"] == []
            assert client.post(f"/api/v1/trash/code/{row.pk}/restore/").status_code == 404
            assert client.post(f"/trash/code/{row.pk}/erase").status_code == 404
        for user in (bob, alice, User.objects.get(username="ada")):
            assert [each["id"] for each in client_of(user).get("/api/v1/trash/code/").json()["results"]] == [row.pk]
        Membership.objects.filter(user=bob).delete()
        assert client_of(bob).post(f"/api/v1/trash/code/{row.pk}/restore/").status_code == 404, "a removed member"
        assert client_of(alice).post(f"/api/v1/trash/code/{row.pk}/restore/").status_code == 200


class TestTrash:
    def test_a_deleted_version_is_nowhere_and_comes_back(self, alice: User, project: Project) -> None:
        code = upload(alice, project, "print('seen')")
        job, client = ended(project, code), client_of(alice)
        code_versions.delete(alice, project, [1])
        for path in ("", "files/", "files/train.py", "download/", "diff/"):
            assert client.get(f"/api/v1/projects/{project.pk}/code/1/{path}").status_code == 404
        for path in ("", "download", "changes", "file?path=train.py"):
            assert client.get(f"/projects/{project.pk}/code/1/{path}").status_code == 404
        assert client.get(f"/jobs/new?code={code.pk}").status_code == 404
        assert client.get(f"/api/v1/projects/{project.pk}/code/").json()["results"] == []
        page = client.get(f"/jobs/{job.pk}/details/").content.decode()
        assert "version 1, which is in the trash" in " ".join(page.split())
        assert client.get(f"/api/v1/jobs/{job.pk}/").json()["code"] == 1
        assert "train.py" in client.get("/trash/code/").content.decode()
        client.post(f"/trash/code/{code.pk}/restore")
        assert b"seen" in client.get(f"/projects/{project.pk}/code/1/").content

    def test_a_job_whose_code_is_gone_is_not_run_again_but_copied_with_the_newest(
        self, alice: User, project: Project
    ) -> None:
        job = ended(project, upload(alice, project, "print(1)"), launcher="command", entry="python train.py")
        code_versions.delete(alice, project, [1])
        with pytest.raises(Refused, match="Version 1 of the code was deleted"):
            jobs.retry(alice, job)
        assert client_of(alice).get(f"/jobs/new?copy={job.pk}").status_code == 200
        upload(alice, project, "print(2)")
        page = " ".join(client_of(alice).get(f"/jobs/new?copy={job.pk}").content.decode().split())
        assert f"Job {job.pk} ran version 1 of the code, which was deleted. This copy runs version 2" in page
        with pytest.raises(Refused, match="was deleted"):
            schedules.create(alice, job, {"at": timezone.now().time(), "zone": "UTC", "newest_code": False})

    def test_a_number_is_never_given_again(self, alice: User, project: Project) -> None:
        upload(alice, project, "print(1)")
        code_versions.delete(alice, project, [1])
        assert upload(alice, project, "print(1)").number == 2

    def test_the_database_refuses_a_version_that_would_never_be_erased(self, alice: User, project: Project) -> None:
        code = upload(alice, project, "print(1)")
        with pytest.raises(IntegrityError), transaction.atomic():
            CodeVersion.objects.filter(pk=code.pk).update(deleted_at=timezone.now())


class TestErase:
    def test_content_goes_when_no_other_version_has_it(self, alice: User, project: Project, home: Path) -> None:
        other = make_project(alice, "other")
        code, same = upload(alice, project, "print(1)"), upload(alice, other, "print(1)")
        VersionCommit.objects.create(
            version=code, commit="a" * 40, repository="https://git.example/x", branch="main", author="Someone",
            subject="Private", committed_at=timezone.now(),
        )  # fmt: skip
        job = ended(project, code)
        code_versions.delete(alice, project, [1])
        over()
        age(home)
        tasks.tidy()
        row = CodeVersion.with_deleted.get(pk=code.pk)
        assert (row.files, row.guess, row.upload_name, row.note) == ([], {}, "", "") and row.erased_at
        assert not VersionCommit.objects.exists()
        assert store.path_of(same.sha256).exists(), "the other project has the same content"
        assert client_of(alice).get(f"/projects/{other.pk}/code/1/").status_code == 200
        code_versions.delete(alice, other, [1])
        over()
        tasks.tidy()
        assert not store.path_of(same.sha256).exists()
        page = client_of(alice).get(f"/jobs/{job.pk}/details/").content.decode()
        assert "version 1, which was erased" in " ".join(page.split())
        assert not code_versions.in_trash_of(alice).exists()
        tasks.tidy()

    def test_content_that_was_just_uploaded_again_stays(self, alice: User, project: Project, home: Path) -> None:
        code = upload(alice, project, "print(1)")
        code_versions.delete(alice, project, [1])
        over()
        age(home)
        again = archive.store_upload([("train.py", io.BytesIO(b"print(1)"))])  # its row is not written yet
        tasks.tidy()
        assert again.sha256 == code.sha256 and store.path_of(code.sha256).exists()
        assert CodeVersion.with_deleted.get(pk=code.pk).erased_at is None, "the next round decides"
        services.store_code(alice, project, [("train.py", io.BytesIO(b"print(1)"))])
        age(home)
        tasks.tidy()
        assert store.path_of(code.sha256).exists() and CodeVersion.with_deleted.get(pk=code.pk).erased_at

    def test_erase_now_and_no_way_back(self, alice: User, project: Project, home: Path) -> None:
        code = upload(alice, project, "print(1)")
        with pytest.raises(Refused, match="Move the version to the trash first"):
            code_versions.delete_for_good(alice, code)
        code_versions.delete(alice, project, [1])
        client_of(alice).post(f"/trash/code/{code.pk}/erase")
        client_of(alice).post(f"/trash/code/{code.pk}/restore")
        assert CodeVersion.with_deleted.get(pk=code.pk).deleted_at, "it is too late"
        assert "is being erased" in client_of(alice).get("/trash/code/").content.decode()
        age(home)
        tasks.tidy()
        assert not store.path_of(code.sha256).exists()

    def test_a_crash_between_the_file_and_the_row_is_made_good(
        self, alice: User, project: Project, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        code = upload(alice, project, "print(1)")
        code_versions.delete(alice, project, [1])
        over()
        age(home)
        remove = store.remove

        def dies(sha256: str) -> bool:
            remove(sha256)
            raise OSError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(code_versions.store, "remove", dies)
            assert code_versions.erase_due() == 0
        assert CodeVersion.with_deleted.get(pk=code.pk).erased_at is None
        assert code_versions.erase_due() == 1


@pytest.mark.postgres  # SQLite writes one at a time
@pytest.mark.django_db(transaction=True)
def test_of_a_submission_and_a_deletion_at_the_same_moment_one_is_refused(alice: User, project: Project) -> None:
    code = upload(alice, project, "print(1)")
    asked = submission_of(make_job(project, code=code, launcher="command", entry="python train.py", state="CANCELLED",
                                   finished_at=timezone.now()))  # fmt: skip
    outcome: list[str] = []

    def submit() -> None:
        try:
            jobs.submit(alice, project, asked)
        except Refused as refusal:
            outcome.append(refusal.message)
        finally:
            connection.close()

    with transaction.atomic():
        code_versions.delete(alice, project, [1])
        other = threading.Thread(target=submit)
        other.start()
        other.join(0.3)
        assert other.is_alive() and not outcome, "it waits for the deletion"
    other.join(20)
    assert outcome and "was deleted" in outcome[0]
