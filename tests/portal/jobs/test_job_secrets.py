"""Jobs that get secrets: who may choose which, on the form and by the API, and where they run."""

import json
from typing import Any

import pytest
from django.test import Client

from portal.accounts.models import User
from portal.jobs import job_secrets, services
from portal.jobs.forms import JobForm
from portal.jobs.models import Job
from portal.jobs.spec import submission_of
from portal.projects.models import Membership, Project
from portal.refused import Refused
from portal.scheduler.availability import AgentsWithoutSecrets
from portal.scheduler.run_specs import SecretsUnknownError, secrets_on
from portal.secrets import keys
from portal.secrets.models import Secret
from tests.portal.control_world import queue, ready_node, turn
from tests.portal.jobs_world import make_code, make_environment, make_project, make_user

pytestmark = pytest.mark.django_db
VALUE = "hf_0123456789abcdef"


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    made = make_project(alice)
    make_code(made)
    make_environment()
    return made


def give(owner: User | Project, name: str = "HF_TOKEN", kind: str = Secret.Kind.VARIABLE) -> Secret:
    whose = {"user": owner} if isinstance(owner, User) else {"project": owner}
    return Secret.objects.create(name=name, kind=kind, sealed=keys.seal(VALUE), **whose)


def by_api(user: User, project: Project, **fields: Any) -> Any:
    client = Client()
    client.force_login(user)
    body = {"project": project.pk, "launcher": "command", "entry": "python train.py", **fields}
    return client.post("/api/v1/jobs/", json.dumps(body), content_type="application/json")


def test_a_job_names_its_secrets_and_nothing_answers_with_their_values(alice: User, project: Project) -> None:
    give(alice)
    give(project, "kaggle.json", Secret.Kind.FILE)
    answer = by_api(alice, project, secrets=["HF_TOKEN", "project/kaggle.json"])
    assert answer.status_code == 201, answer.content
    assert answer.json()["secrets"] == ["HF_TOKEN", "project/kaggle.json"]
    job = Job.objects.get()
    assert job_secrets.names_and_kinds(job) == (("HF_TOKEN", "variable"), ("kaggle.json", "file"))
    assert VALUE not in answer.content.decode() + str(services.specification(job, alice))
    assert job_secrets.values(job) == [
        {"name": "HF_TOKEN", "kind": "variable", "value": VALUE},
        {"name": "kaggle.json", "kind": "file", "value": VALUE},
    ]
    assert Secret.objects.filter(used_at=None).count() == 0


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (["WANDB_API_KEY"], "There is no secret “WANDB_API_KEY” that you may use."),
        (["project/WANDB_API_KEY"], "An owner of the project adds it"),
        (["HF_TOKEN", "project/HF_TOKEN"], "HF_TOKEN is chosen twice"),
        (["HF_TOKEN", "HF_TOKEN"], "HF_TOKEN is chosen twice"),
        (["LD_PRELOAD"], "A job cannot set LD_PRELOAD"),
        (["TAKEN"], "TAKEN is both a secret and an environment variable"),
        ([f"S{number}" for number in range(51)], "50"),
        (["x" * 121], "120"),
        (["../../etc/passwd"], "There is no secret"),
    ],
)
def test_what_cannot_be_chosen_is_refused(alice: User, project: Project, chosen: list[str], words: str) -> None:
    for name in ("HF_TOKEN", "LD_PRELOAD", "TAKEN"):
        give(alice, name)
    give(project)
    answer = by_api(alice, project, secrets=chosen, env_vars={"TAKEN": "1"})
    assert answer.status_code == 400 and words in answer.content.decode()
    assert not Job.objects.exists()


def test_members_use_the_secrets_of_their_project_and_no_one_elses(alice: User, project: Project) -> None:
    bob, charlie = make_user("bob"), make_user("charlie")
    Membership.objects.create(project=project, user=bob, role=Membership.Role.MEMBER)
    give(alice)
    give(project, "WANDB_API_KEY")
    assert by_api(bob, project, secrets=["HF_TOKEN"]).status_code == 400
    assert by_api(bob, project, secrets=["project/WANDB_API_KEY"]).status_code == 201
    others = make_project(charlie)
    assert [name for name, _ in job_secrets.choices(charlie, others)] == []
    assert [name for name, _ in job_secrets.choices(bob, project)] == ["project/WANDB_API_KEY"]


def test_who_left_the_project_or_the_lab_gives_a_job_nothing(alice: User, project: Project) -> None:
    bob = make_user("bob")
    Membership.objects.create(project=project, user=bob, role=Membership.Role.MEMBER)
    give(project)
    give(bob, "OWN")
    assert by_api(bob, project, secrets=["project/HF_TOKEN"]).status_code == 201
    assert by_api(bob, project, secrets=["OWN"]).status_code == 201
    of_project, own = Job.objects.order_by("pk")
    Membership.objects.filter(user=bob).update(role=Membership.Role.VIEWER)
    with pytest.raises(Refused, match="There is no secret “project/HF_TOKEN” that you may use"):
        job_secrets.values(of_project)
    bob.is_active = False
    bob.save()
    own.refresh_from_db()
    with pytest.raises(Refused, match="deactivated"):
        job_secrets.values(Job.objects.get(pk=own.pk))


def test_a_secret_that_is_gone_or_unreadable_stops_the_job_with_its_name(alice: User, project: Project) -> None:
    secret = give(alice)
    by_api(alice, project, secrets=["HF_TOKEN"])
    job = Job.objects.get()
    Secret.objects.update(sealed="x" * 100)
    with pytest.raises(Refused, match="HF_TOKEN cannot be read any more"):
        job_secrets.values(job)
    again = by_api(alice, project, secrets=["HF_TOKEN"])
    assert again.status_code == 400 and "cannot be read any more" in again.content.decode()
    secret.delete()
    assert job_secrets.names_and_kinds(job) == (("HF_TOKEN", "variable"),), "it is asked for, and refused"
    with pytest.raises(Refused, match="HF_TOKEN"):
        job_secrets.values(job)


def test_the_form_offers_them_and_a_copy_keeps_those_of_another(alice: User, project: Project) -> None:
    give(alice)
    give(project, "kaggle.json", Secret.Kind.FILE)
    code = project.code_versions.get()
    client = Client()
    client.force_login(alice)
    page = client.get(f"/jobs/new?code={code.pk}").content.decode()
    assert "HF_TOKEN (yours)" in page and "kaggle.json (the project’s, a file)" in page and VALUE not in page
    by_api(alice, project, secrets=["HF_TOKEN"])
    bob = make_user("bob")
    Membership.objects.create(project=project, user=bob, role=Membership.Role.MEMBER)
    copied = JobForm(code, copy_of=Job.objects.get(), user=bob)
    assert copied.more_is_open
    assert dict(copied.fields["secrets"].choices)["HF_TOKEN"] == "HF_TOKEN (there is none that you may use)"  # type: ignore[attr-defined]


class TestWhereItRuns:
    def test_agents_of_the_release_before_get_no_job_with_secrets(self, alice: User) -> None:
        old = ready_node("old", 2)
        job = queue(1)
        give(job.submitted_by)
        Job.objects.filter(pk=job.pk).update(secrets=["HF_TOKEN"])
        turn()
        job.refresh_from_db()
        assert AgentsWithoutSecrets.code in str(job.waiting_reason) and "old is too old" in job.why_waiting
        with pytest.raises(SecretsUnknownError):
            secrets_on(old, job)
        ready_node("new", 2, facts={"job_secrets": 1})
        turn()
        part = job.attempts.get().containers.get(role="host")
        assert part.node.name == "new" and part.spec["secrets"] == [["HF_TOKEN", "variable"]]
        assert VALUE not in json.dumps(part.spec)

    def test_jobs_without_secrets_run_on_old_agents_with_the_specification_that_they_know(self) -> None:
        ready_node("old", 2)
        job = queue(1)
        turn()
        assert "secrets" not in job.attempts.get().containers.get(role="host").spec
        assert submission_of(job).secrets == ()
