"""Removing environments: what needs one, what would break, and what stays for kept jobs."""

from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.deletion import environments
from portal.environments.models import Environment
from portal.jobs import environment_use, trash
from portal.jobs.models import Job, JobState
from portal.projects.models import Project
from portal.refused import Refused
from portal.schedules.models import Schedule
from tests.portal.jobs_world import exit, make_job, make_node, make_project, make_user, place, run

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


@pytest.fixture
def own(alice: User, project: Project) -> Environment:
    return Environment.objects.create(key="own", title="Own one", project=project, created_by=alice, recipe="r" * 64)


def ended(project: Project, **fields: Any) -> Job:
    return make_job(project, state=JobState.SUCCEEDED, finished_at=timezone.now(), **fields)


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_what_needs_it_is_named(alice: User, project: Project, own: Environment) -> None:
    waiting = make_job(project, environment=own)
    kept = trash.keep(alice, ended(project, environment=own))
    Schedule.objects.create(
        project=project, owner=alice, name="nightly", environment=own, launcher="command", entry="python train.py",
        at="02:00", zone="UTC",
    )  # fmt: skip
    Environment.objects.create(key="more", title="More of it", project=project, created_by=alice, base=own)
    page = client_of(alice).get("/environments/own/remove").content.decode()
    for words in (f"Job {waiting.pk} has not ended.", f"Job {kept.pk} is kept.", "nightly", "More of it"):
        assert words in page
    with pytest.raises(Refused, match="is kept"):
        environments.remove(alice, own)
    assert client_of(alice).delete("/api/v1/environments/own/").status_code == 409
    assert not Environment.objects.get(pk=own.pk).retired


def test_it_is_removed_when_nothing_needs_it(alice: User, project: Project, own: Environment) -> None:
    ended(project, environment=own)
    page = " ".join(client_of(alice).get("/environments/own/remove").content.decode().split())
    assert "1 job that has ended and ran in it cannot be run again with it" in page
    assert client_of(alice).get("/api/v1/environments/own/deletion/").json()["ended_jobs"] == 1
    assert client_of(alice).post("/environments/own/remove").status_code == 302
    assert Environment.objects.get(pk=own.pk).retired


def test_others_may_not(project: Project, own: Environment) -> None:
    charlie = client_of(make_user("charlie"))
    assert charlie.get("/environments/own/remove").status_code == 404
    assert charlie.get("/api/v1/environments/own/deletion/").status_code == 404


def test_the_packages_with_which_a_kept_job_ran_stay(alice: User, project: Project, own: Environment) -> None:
    job = make_job(project, environment=own)
    gpu = make_node().gpus.first()
    assert gpu is not None
    part = place(job, [gpu]).containers.get()
    part.spec |= {"layer": "d" * 64}
    part.save(update_fields=["spec"])
    run(part)
    exit(part)
    assert own.pk not in environment_use.current_use().busy and not environment_use.current_use().layers
    trash.keep(alice, Job.objects.get(pk=job.pk))
    use = environment_use.current_use()
    assert own.pk in use.busy and use.layers == {"d" * 64}
