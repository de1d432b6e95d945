"""Deleting projects: what hinders it, what is hidden, what comes back, and what is gone after that."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import Client
from django.utils import timezone

from portal.accounts.models import AuditEntry, User
from portal.deletion import projects, tasks
from portal.jobs import services as jobs
from portal.jobs import trash
from portal.jobs.models import Job, JobState
from portal.jobs.spec import submission_of
from portal.projects import services
from portal.projects.models import CodeVersion, GitFetch, GitSource, Membership, Project
from portal.refused import Refused
from portal.schedules import running
from portal.schedules.models import Schedule
from portal.secrets.models import Secret
from portal.usage.models import UsageDay
from tests.portal.jobs_world import make_code, make_environment, make_job, make_project, make_user

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
    return make_project(alice, "Paper")


def ended(project: Project, **fields: Any) -> Job:
    return make_job(project, state=JobState.SUCCEEDED, finished_at=timezone.now(), **fields)


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def nightly(user: User, project: Project) -> Schedule:
    return Schedule.objects.create(
        project=project, owner=user, name="nightly", environment=make_environment(), launcher="command",
        entry="python train.py", at="02:00", zone="UTC", since=timezone.now() - timedelta(days=3),
    )  # fmt: skip


def test_jobs_that_need_it_are_named_and_nothing_is_cancelled(alice: User, project: Project) -> None:
    waiting, kept = make_job(project), trash.keep(alice, ended(project))
    other = make_project(alice, "other")
    follower = make_job(other, after=kept, ready_at=timezone.now())
    page = client_of(alice).get(f"/projects/{project.pk}/delete").content.decode()
    for job, words in ((waiting, "has not ended"), (kept, "is kept"), (follower, "starts after a job of this one")):
        assert f"Job {job.pk} " in page and words in page and f'href="/jobs/{job.pk}/"' in page
    with pytest.raises(Refused, match="has not ended"):
        projects.delete(alice, project, "Paper")
    jobs.cancel(alice, waiting)
    jobs.cancel(alice, follower)
    trash.stop_keeping(alice, kept)
    with pytest.raises(Refused, match="Type the name"):
        projects.delete(alice, project, "paper")
    assert Job.objects.get(pk=kept.pk).deleted_at is None
    projects.delete(alice, project, " Paper ")


def test_a_deleted_project_is_nowhere_and_comes_back_as_a_whole(alice: User, project: Project) -> None:
    bob, ada = make_user("bob"), make_user("ada", is_staff=True)
    Membership.objects.create(project=project, user=bob, role="member")
    job, earlier = ended(project), ended(project)
    trash.delete(alice, earlier)
    Secret.objects.create(project=project, name="TOKEN", sealed="x")
    answers = {user: client_of(user).get(f"/api/v1/projects/{project.pk}/").json() for user in (alice, bob, ada)}
    assert client_of(alice).post(f"/projects/{project.pk}/delete", {"name": "Paper"}).status_code == 302
    for user in (alice, bob, ada):
        client = client_of(user)
        for path in (
            f"/projects/{project.pk}/", f"/projects/{project.pk}/edit", f"/projects/{project.pk}/schedules",
            f"/projects/{project.pk}/secrets/", f"/projects/{project.pk}/code/1/", f"/projects/{project.pk}/git",
            f"/jobs/{job.pk}/", f"/api/v1/projects/{project.pk}/", f"/api/v1/jobs/{job.pk}/",
            f"/api/v1/projects/{project.pk}/members/", f"/jobs/new?copy={job.pk}",
        ):  # fmt: skip
            assert client.get(path).status_code == 404, (user, path)
        assert client.get("/api/v1/projects/").json()["results"] == []
        assert client.get("/api/v1/jobs/").json()["results"] == []
        assert client.get("/api/v1/trash/").json()["results"] == [], "they come back with the project alone"
        assert "Paper" not in client.get("/projects/").content.decode().replace("“Paper” is in the trash", "")
    assert client_of(bob).get("/api/v1/trash/projects/").json()["results"] == []
    assert client_of(bob).post(f"/trash/projects/{project.pk}/restore").status_code == 404
    assert "Paper" in client_of(alice).get("/trash/projects/").content.decode()
    with pytest.raises(Refused, match="deleted"):
        services.share(alice, project, "ada", "viewer")
    assert client_of(alice).post(f"/trash/projects/{project.pk}/restore").status_code == 302
    for user in (alice, bob, ada):
        assert client_of(user).get(f"/api/v1/projects/{project.pk}/").json() == answers[user]
        assert client_of(user).get(f"/api/v1/jobs/{job.pk}/").status_code == 200
    assert Job.objects.get(pk=earlier.pk).deleted_at is not None, "it was deleted before the project"
    actions = AuditEntry.objects.filter(action__startswith="project.").order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["project.delete", "project.restore"]


def test_schedules_and_fetches_stop_meanwhile(alice: User, project: Project) -> None:
    make_code(project)
    row = nightly(alice, project)
    source = GitSource.objects.create(
        project=project, address="https://git.example/x", branch="main", hook="h" * 40, bound_by=alice
    )
    fetch = GitFetch.objects.create(project=project, requested_by=alice, address=source.address, branch="main")
    projects.delete(alice, project, "Paper")
    fetch.refresh_from_db()
    assert not fetch.is_open
    assert running.run_due().submitted == 0 and not row.runs.exists()
    assert client_of(alice).post(f"/hooks/git/{source.hook}").status_code == 404
    ada = make_user("ada", is_staff=True)
    assert client_of(ada).get(f"/schedules/{row.pk}/").status_code == 404
    projects.restore(alice, Project.with_deleted.get(pk=project.pk))
    running.run_due()
    assert not row.runs.exists(), "the days in the trash are not made up for"


def test_a_submission_that_was_prepared_before_is_refused(alice: User, project: Project) -> None:
    code = make_code(project)
    asked = submission_of(ended(project, code=code, launcher="command", entry="python train.py"))
    prepared = Project.objects.get(pk=project.pk)
    projects.delete(alice, project, "Paper")
    with pytest.raises(Refused, match="deleted"):
        jobs.submit(alice, prepared, asked)


def test_after_its_time_its_gpu_time_stays_and_nothing_else(alice: User, project: Project) -> None:
    job = ended(project, name="secret name", description="secret text")
    nightly(alice, project)
    Secret.objects.create(project=project, name="TOKEN", sealed="x")
    today = timezone.now().date()
    UsageDay.objects.create(user=alice, project=project, day=today)
    projects.delete(alice, project, "Paper")
    tasks.tidy()
    assert Project.with_deleted.get().erased_at is None, "not yet"
    row = projects.delete_for_good(alice, Project.with_deleted.get())
    with pytest.raises(Refused, match="cannot be restored"):
        projects.restore(alice, row)
    tasks.tidy()
    row = Project.with_deleted.get()
    assert row.erased_at and row.name == f"deleted project {row.pk}" and row.description == ""
    for table in (Membership, Secret, Schedule):
        assert not table._default_manager.exists()
    assert CodeVersion.with_deleted.get().erased_at and Job.objects.get(pk=job.pk).name == "deleted job"
    assert UsageDay.objects.get().project_id == row.pk
    assert not projects.in_trash_of(make_user("ada", is_staff=True)).exists()
    tasks.tidy()


def test_only_owners_and_admins_may(alice: User, project: Project) -> None:
    people = {name: make_user(name) for name in ("bob", "victor", "charlie")}
    for name, role in (("bob", "member"), ("victor", "viewer")):
        Membership.objects.create(project=project, user=people[name], role=role)
    for name, status in (("bob", 403), ("victor", 403), ("charlie", 404)):
        client = client_of(people[name])
        answer = client.post(f"/api/v1/projects/{project.pk}/deletion/", {"name": "Paper"}, "application/json")
        assert answer.status_code == status
        assert client.get(f"/projects/{project.pk}/delete").status_code == 404
        assert Project.objects.filter(pk=project.pk).exists()
