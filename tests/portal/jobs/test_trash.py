"""Deleting jobs: who may, what hinders it, what comes back, and what is gone after that."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from portal.accounts.models import AuditEntry, User
from portal.jobs import checkpoints, logs, outputs, services, trash
from portal.jobs.models import CheckpointSet, Job, JobState, LogStream, Output
from portal.jobs.retention import services as retention
from portal.projects.models import Membership, Project
from portal.refused import Refused
from portal.scheduler import tasks
from portal.usage.models import UsageDay
from tests.portal.jobs_world import exit, make_job, make_node, make_project, make_user, place, run

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
CONTENT = b"weights " * 100


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


def finished(project: Project, **fields: Any) -> Job:
    """A job that has succeeded with an output, a log and checkpoints."""
    job = make_job(project, launcher="command", name="train on secret data", **fields)
    gpu = make_node(f"node-{job.pk}").gpus.first()
    assert gpu is not None
    part = place(job, [gpu]).containers.get()
    run(part)
    logs.append(logs.open_stream(part, "0"), 0, b"epoch 1\n")
    outputs.store(part.attempt, "model.pt", [CONTENT])
    checkpoints.folder_of(job).mkdir(parents=True)
    (checkpoints.folder_of(job) / ("a" * 64)).write_bytes(CONTENT)
    CheckpointSet.objects.create(job=job, attempt=part.attempt, size=len(CONTENT), files={})
    exit(part)
    job.refresh_from_db()
    assert job.state == JobState.SUCCEEDED
    return job


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def stored_files(home: Path) -> list[Path]:
    return [path for name in ("outputs", "logs", "checkpoints") for path in (home / name).rglob("*") if path.is_file()]


class TestDelete:
    def test_a_deleted_job_is_nowhere_and_comes_back_as_it_was(self, alice: User, project: Project, home: Path) -> None:
        job, client = finished(project), client_of(alice)
        before, files = client.get(f"/api/v1/jobs/{job.pk}/").json(), stored_files(home)
        page = client.get(f"/jobs/{job.pk}/delete").content.decode()
        assert "1 file in /outputs (800 B)" in page and "14 days" in page
        assert client.post(f"/jobs/{job.pk}/delete").headers["Location"] == "/jobs/"
        for path in (
            f"/jobs/{job.pk}/",
            f"/api/v1/jobs/{job.pk}/",
            f"/jobs/{job.pk}/outputs/model.pt",
            f"/jobs/{job.pk}/log.txt",
        ):
            assert client.get(path).status_code == 404, path
        assert client.get("/api/v1/jobs/").json()["results"] == []
        assert "train on secret data" not in client.get(f"/projects/{project.pk}/jobs").content.decode()
        assert [row["id"] for row in client.get("/api/v1/trash/").json()["results"]] == [job.pk]
        assert "train on secret data" in client.get("/jobs/trash").content.decode()
        assert stored_files(home) == files
        assert client.post(f"/jobs/trash/{job.pk}/restore").headers["Location"] == "/jobs/trash"
        assert client.get(f"/api/v1/jobs/{job.pk}/").json() == before
        assert [str(row.action) for row in AuditEntry.objects.filter(action__startswith="job.").order_by("pk")] == [
            "job.delete",
            "job.restore",
        ]

    def test_what_hinders_it_is_named(self, alice: User, project: Project) -> None:
        running = make_job(project)
        with pytest.raises(Refused, match="It has not ended. Cancel it first."):
            trash.delete(alice, running)
        parent = finished(project)
        child = make_job(project, after=parent, use_outputs=True, ready_at=timezone.now())
        with pytest.raises(Refused, match=f"Job {child.pk} starts after it."):
            trash.delete(alice, parent)
        others = [make_job(project, after=parent, ready_at=timezone.now()) for _ in range(6)]
        with pytest.raises(Refused, match=f"Jobs {child.pk}, .* and others start after it."):
            trash.delete(alice, parent)
        for each in (child, *others):
            services.cancel(alice, each)
        trash.keep(alice, parent)
        with pytest.raises(Refused, match="Stop keeping"):
            trash.delete(alice, parent)
        trash.stop_keeping(alice, parent)
        assert trash.delete(alice, parent).deleted_by == alice

    def test_only_those_who_may_act_on_a_job_delete_restore_and_erase_it(self, alice: User, project: Project) -> None:
        job = finished(project)
        bob, victor, charlie = (make_user(name) for name in ("bob", "victor", "charlie"))
        Membership.objects.create(project=project, user=bob, role=Membership.Role.MEMBER)
        Membership.objects.create(project=project, user=victor, role=Membership.Role.VIEWER)
        for user, status in ((bob, 403), (victor, 403), (charlie, 404)):
            client = client_of(user)
            assert client.delete(f"/api/v1/jobs/{job.pk}/").status_code == status
            assert client.post(f"/api/v1/jobs/{job.pk}/keep/").status_code == status
            client.post(f"/jobs/{job.pk}/delete")
            assert Job.objects.get().deleted_at is None
        trash.delete(alice, job)
        for user in (bob, victor, charlie):
            client = client_of(user)
            assert client.get("/api/v1/trash/").json()["results"] == []
            for answer in (
                client.post(f"/api/v1/trash/{job.pk}/restore/"),
                client.delete(f"/api/v1/trash/{job.pk}/"),
                client.post(f"/jobs/trash/{job.pk}/restore"),
                client.post(f"/jobs/trash/{job.pk}/erase"),
            ):
                assert answer.status_code == 404
        Membership.objects.filter(user=alice).update(role=Membership.Role.VIEWER)
        assert not Job.objects.in_trash_of(alice).exists()
        assert Job.objects.in_trash_of(make_user("ada", is_staff=True)).get() == job

    def test_of_selected_jobs_those_that_can_be_are_deleted(self, alice: User, project: Project) -> None:
        done, waiting = finished(project), make_job(project)
        answer = client_of(alice).post("/jobs/selected", {"do": "delete", "job": [done.pk, waiting.pk]}, follow=True)
        text = answer.content.decode()
        assert "1 job is in the trash for 14 days." in text and f"Job {waiting.pk}: It has not ended." in text

    def test_the_database_refuses_a_deleted_job_that_runs_or_is_kept(self, project: Project) -> None:
        for values in ({"state": JobState.RUNNING, "finished_at": None}, {"kept": True}, {"erase_at": None}):
            job = make_job(project)
            with pytest.raises(IntegrityError), transaction.atomic():
                Job.objects.filter(pk=job.pk).update(
                    **{
                        "state": JobState.CANCELLED,
                        "finished_at": timezone.now(),
                        "deleted_at": timezone.now(),
                        "erase_at": timezone.now(),
                        **values,
                    }
                )


class TestErase:
    def test_after_its_time_nothing_of_it_is_left_but_its_gpu_time(
        self, alice: User, project: Project, home: Path
    ) -> None:
        job, other = finished(project), finished(project)
        of_other = len(stored_files(home))
        usage = list(UsageDay.objects.values())
        trash.delete(alice, job)
        tasks.tidy()
        assert len(stored_files(home)) == of_other, "not yet"
        Job.objects.filter(pk=job.pk).update(erase_at=timezone.now() - timedelta(seconds=1))
        with pytest.raises(Refused, match="cannot be restored any more"):
            trash.restore(alice, job)
        tasks.tidy()
        assert len(stored_files(home)) == of_other // 2
        assert set(Output.objects.values_list("job", flat=True)) == {other.pk}
        assert set(LogStream.objects.values_list("container__attempt__job", flat=True)) == {other.pk}
        job.refresh_from_db()
        assert "secret" not in json.dumps(
            [job.name, job.entry, job.arguments, job.env_vars, job.description, job.search_text]
        )
        spec = job.attempts.get().containers.get().spec
        assert spec["slots"] and not any(spec.get(key) for key in ("command", "env", "secrets"))
        assert job.erased_at and job.attempts.get().allocations.exists()
        assert list(UsageDay.objects.values()) == usage
        assert not Job.objects.in_trash_of(alice).exists()
        first = job.erased_at
        tasks.tidy()
        assert Job.objects.get(pk=job.pk).erased_at == first, "once is enough"

    def test_a_crash_between_files_and_rows_is_made_good(
        self, alice: User, project: Project, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = finished(project)
        trash.delete_for_good(alice, trash.delete(alice, job))

        def dies(pk: int) -> Job:
            raise RuntimeError("killed")

        with monkeypatch.context() as patch, pytest.raises(RuntimeError):
            patch.setattr(trash.lifecycle, "get_locked", dies)
            trash.erase_due()
        assert stored_files(home) == [] and Job.objects.get(pk=job.pk).erased_at is None
        assert trash.erase_due() == 1
        assert Job.objects.get(pk=job.pk).erased_at is not None and trash.erase_due() == 0

    def test_what_is_not_in_the_trash_is_not_erased(self, alice: User, project: Project, home: Path) -> None:
        job = finished(project)
        files = stored_files(home)
        with pytest.raises(Refused, match="Move the job to the trash first"):
            trash.delete_for_good(alice, job)
        trash.delete_for_good(alice, trash.delete(alice, job))
        assert client_of(alice).post(f"/jobs/trash/{job.pk}/restore").status_code == 302
        assert Job.objects.get(pk=job.pk).deleted_at is not None, "it is too late"
        page = client_of(alice).get("/jobs/trash").content.decode()
        assert "is being erased" in page and "Restore</button>" not in page
        assert stored_files(home) == files


def test_checkpoints_of_a_kept_job_stay(alice: User, project: Project) -> None:
    kept, other = finished(project), finished(project)
    trash.keep(alice, kept)
    retention.remove_checkpoints_without_rule(timezone.now() + checkpoints.RETENTION + timedelta(days=1))
    assert other.pk not in set(CheckpointSet.objects.values_list("job", flat=True)) == {kept.pk}
