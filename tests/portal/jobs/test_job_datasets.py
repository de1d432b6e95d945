"""Jobs that read datasets: who may choose which, where the job finds them, on the form and by the API, and where it runs."""

import json
from datetime import time, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db.models import ProtectedError
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.cluster.models import Node
from portal.jobs import job_datasets, lifecycle, rules, services, trash
from portal.jobs.dataset_paths import path_problem, place_problem
from portal.jobs.dataset_use import uses
from portal.jobs.forms import JobForm
from portal.jobs.models import Container, ContainerState, Job, JobDataset, StopReason
from portal.jobs.spec import submission_of
from portal.projects.models import Membership, Project
from portal.refused import Refused
from portal.scheduler.availability import AgentsWithoutDatasets
from portal.scheduler.run_specs import DatasetsUnknownError, datasets_on
from portal.schedules import services as schedules
from portal.schedules.running import submission_for
from portal.storage import services as storage
from portal.storage.models import Dataset, DatasetVersion
from tests.portal.control_world import queue, ready_node, turn
from tests.portal.jobs_world import make_code, make_environment, make_project, make_user
from tests.portal.storage_world import make_dataset, uploaded

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def home(settings: LazySettings, tmp_path: Path) -> None:
    settings.HOME = tmp_path


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    made = make_project(alice)
    make_code(made)
    make_environment()
    return made


@pytest.fixture
def digits(alice: User) -> Dataset:
    """A dataset with two versions that are ready."""
    made = make_dataset(alice, "digits", title="Handwritten digits")
    uploaded(alice, made, {"MNIST/raw/train": b"1" * 3000})
    uploaded(alice, made, {"MNIST/raw/train": b"2" * 2000, "README": b"new"})
    return made


def by_api(user: User, project: Project, **fields: Any) -> Any:
    client = Client()
    client.force_login(user)
    body = {"project": project.pk, "launcher": "command", "entry": "python train.py", **fields}
    return client.post("/api/v1/jobs/", json.dumps(body), content_type="application/json")


def test_a_job_keeps_the_newest_version_of_its_submission(alice: User, project: Project, digits: Dataset) -> None:
    answer = by_api(alice, project, datasets=[{"dataset": "alice/digits", "path": "../data", "writable": True}])
    assert answer.status_code == 201, answer.content
    kept = {"dataset": digits.pk, "version": 2, "path": "../data", "writable": True}
    assert answer.json()["datasets"] == [kept]
    uploaded(alice, digits, {"x": b"third"})
    job = Job.objects.get()
    assert submission_of(job).datasets == (kept,)
    assert services.specification(job, alice)["datasets"] == (kept,)
    assert job.datasets.get().name == "digits"
    for reference in (digits.pk, str(digits.pk), "digits"):
        answer = by_api(alice, project, datasets=[{"dataset": reference, "version": 1}])
        assert answer.json()["datasets"] == [{"dataset": digits.pk, "version": 1, "path": "", "writable": False}]


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ([{"dataset": "bob/digits"}], "There is no dataset “bob/digits” that you may use."),
        ([{"dataset": 10**12}], "There is no dataset “1000000000000” that you may use."),
        ([{"dataset": ""}], "number of a dataset"),
        ([{"dataset": True}], "number of a dataset"),
        ([{"dataset": "a\0b"}], "number of a dataset"),
        ([{}], "required"),
        (["digits"], "dictionary"),
        ([{"dataset": "digits", "version": 3}], "has no version 3"),
        ([{"dataset": "digits", "version": 0}], "greater than or equal to 1"),
        ([{"dataset": "digits", "writable": True}], "Give a path"),
        ([{"dataset": "digits", "mount": "/x"}], "There is no field of this name"),
        ([{"dataset": "digits"}, {"dataset": "digits", "version": 1}], "Two datasets are called"),
        ([{"dataset": "digits", "path": "../data/digits"}], "would be at"),
        ([{"dataset": "digits", "path": "data/x"}, {"dataset": "faces", "path": "data"}], "would be at"),
        ([{"dataset": "digits", "path": "train.py"}], "is a file of the code"),
        ([{"dataset": "digits", "path": "/data"}], "begins with a slash"),
        ([{"dataset": "digits"}] * 21, "20"),
        ([{"dataset": "unready"}], "has no version that is ready"),
        ([{"dataset": "old"}], "is archived"),
    ],
)
def test_what_cannot_be_chosen_is_refused(
    alice: User, project: Project, digits: Dataset, chosen: list[Any], words: str
) -> None:
    uploaded(alice, make_dataset(alice, "faces"), {"a": b"1"})
    make_dataset(alice, "unready")
    old = make_dataset(alice, "old")
    uploaded(alice, old, {"a": b"1"})
    storage.archive(alice, old)
    answer = by_api(alice, project, datasets=chosen)
    assert answer.status_code == 400 and words in answer.json()["error"]["message"] + answer.content.decode()
    assert not Job.objects.exists()


@pytest.mark.parametrize("path", ["data", "../data", "a/b/c", "../data/digits", "../mnist", "übung", "data with space"])
def test_a_dataset_may_be_beneath_the_code_or_beside_it(path: str) -> None:
    assert path_problem(path, ["train.py", "src/model.py", "database.py"]) == ""


@pytest.mark.parametrize(
    "path",
    [
        *(
            "..",
            ".",
            "/data",
            "../../data",
            "a/../b",
            "../..",
            "a//b",
            "./a/.",
            "a/./b",
            "../data/../etc",
            " data",
            "data ",
        ),
        *("a\\b", "a\nb", "a\0b", "x" * 256, "/".join("abcdefghi"), "../.ssh", "../state.json"),
        *("../outputs", "../checkpoints/x", "../run", "../etc", "../tmp", "../workspace", "../usr/lib", "../inputs"),
        *(
            "../secrets",
            "../control",
            "../scribe",
            "../cache",
            "../proc",
            "../dev",
            "../opt",
            "../copies",
            "../datasets",
        ),
        *("train.py", "train.py/x", "src", "src/model.py"),
    ],
)
def test_a_path_leaves_nothing_and_hides_nothing(path: str) -> None:
    assert path_problem(path, ["train.py", "src/model.py"]) != ""


def test_an_empty_folder_of_the_code_may_become_a_dataset() -> None:
    assert path_problem("data", ["train.py", "data/.gitkeep"]) == ""
    assert path_problem("data", ["train.py", "data/.gitkeep", "data/labels.csv"]) != ""


def test_a_dataset_in_the_place_of_all_moves_the_others() -> None:
    assert place_problem(["digits", "faces"], ["../data"]) == ""
    assert place_problem(["digits"], ["../data", "../data/x"]) != ""
    assert place_problem(["digits", "faces"], ["data", "database"]) == ""


def test_strangers_viewers_and_removed_members_use_only_what_they_see(
    alice: User, project: Project, digits: Dataset
) -> None:
    bob, victor, charlie = make_user("bob"), make_user("victor"), make_user("charlie")
    Membership.objects.create(project=project, user=bob, role=Membership.Role.MEMBER)
    Membership.objects.create(project=project, user=victor, role=Membership.Role.VIEWER)
    asked = [{"dataset": "alice/digits"}]
    assert by_api(bob, project, datasets=asked).status_code == 400, "the dataset is its owner's alone"
    storage.edit(alice, digits, {"project": project, "visibility": "project"})
    assert by_api(bob, project, datasets=asked).status_code == 201
    assert by_api(victor, project, datasets=asked).status_code == 403
    assert by_api(charlie, make_project(charlie, "other"), datasets=asked).status_code == 400
    assert [each.reference for each in job_datasets.proposals(charlie)] == []
    assert [each.reference for each in job_datasets.proposals(victor)] == ["alice/digits"]
    job = Job.objects.get()
    sha256 = job.datasets.get().version.sha256
    assert job_datasets.require_usable(job, sha256) is not None
    Membership.objects.filter(user=bob).delete()
    with pytest.raises(Refused, match="bob may not use the dataset “digits” any more"):
        job_datasets.require_usable(job, sha256)
    Dataset.objects.update(visibility="lab")
    assert job_datasets.require_usable(Job.objects.get(), sha256) is not None
    storage.archive(alice, digits)
    with pytest.raises(Refused, match="was archived. Restore it"):
        job_datasets.require_usable(Job.objects.get(), sha256)
    storage.restore(alice, digits)
    User.objects.filter(pk=bob.pk).update(is_active=False)
    with pytest.raises(Refused, match="account of bob is deactivated"):
        job_datasets.require_usable(Job.objects.get(), sha256)


class TestForm:
    def page(self, user: User, address: str) -> str:
        client = Client()
        client.force_login(user)
        response = client.get(address)
        assert response.status_code == 200
        return response.content.decode()

    def test_it_proposes_datasets_with_their_sizes(self, alice: User, project: Project, digits: Dataset) -> None:
        code = project.code_versions.get()
        page = self.page(alice, f"/jobs/new?code={code.pk}")
        option = '<option value="alice/digits"> Handwritten digits, version 2, 2.0 KiB </option>'
        assert option in " ".join(page.split())
        page = self.page(alice, f"/jobs/new?code={code.pk}&dataset=alice/digits")
        assert 'value="alice/digits"' in page

    def test_its_rows_become_datasets(self, alice: User, project: Project, digits: Dataset) -> None:
        code = project.code_versions.get()
        values = {
            **{"launcher": "command", "command": "python train.py", "min_gpus": "1", "max_gpus": "1", "key": "k"},
            **{"environment": make_environment().key, "time_amount": "1", "time_unit": "3600"},
            **{"retries": "0", "priority": "0", "tier": "standard"},
            "datasets-0": "alice/digits:1",
            "datasets-0-path": "../data",
            "datasets-0-mode": "writable",
            "datasets-1": "",
            "datasets-3": "alice/digits",
        }
        form = JobForm(code, values, user=alice)
        assert form.is_valid(), form.errors
        assert form.submission().datasets == (
            {"dataset": "alice/digits", "version": 1, "path": "../data", "writable": True},
            {"dataset": "alice/digits", "version": None, "path": "", "writable": False},
        )
        assert 'value="alice/digits:1"' in str(form["datasets"])
        client = Client()
        client.force_login(alice)
        response = client.post(f"/jobs/new?code={code.pk}", values)
        assert "Two datasets are called “digits”" in response.content.decode()
        del values["datasets-3"]
        assert client.post(f"/jobs/new?code={code.pk}", values).status_code == 302
        assert Job.objects.get().datasets.get().version.number == 1

    @pytest.mark.parametrize(
        ("row", "words"),
        [
            ({"datasets-0": "", "datasets-0-path": "data"}, "Name the dataset"),
            ({"datasets-0": "alice/digits:x"}, "no number after the colon"),
            ({"datasets-0": "x" * 261}, "Write a dataset as owner/name"),
            ({"datasets-0": "a\0b"}, "Write a dataset as owner/name"),
        ],
    )
    def test_what_is_typed_wrongly_is_refused_beside_it(
        self, alice: User, project: Project, row: dict[str, str], words: str
    ) -> None:
        form = JobForm(project.code_versions.get(), {"launcher": "command", **row}, user=alice)
        assert words in str(form.errors["datasets"])

    def test_copies_keep_the_version_and_the_page_of_the_job_shows_it(
        self, alice: User, project: Project, digits: Dataset
    ) -> None:
        by_api(alice, project, datasets=[{"dataset": digits.pk, "version": 1, "path": "data"}])
        job = Job.objects.get()
        copied = JobForm(job.code, copy_of=job, user=alice)
        assert copied["datasets"].value() == [{"reference": "alice/digits:1", "path": "data", "writable": False}]
        assert copied.more_is_open
        bob = make_user("bob")
        Membership.objects.create(project=project, user=bob, role=Membership.Role.MEMBER)
        theirs = JobForm(job.code, copy_of=job, user=bob)
        assert theirs["datasets"].value()[0]["reference"] == f"{digits.pk}:1", "its name may not be theirs to see"
        page = self.page(alice, f"/jobs/{job.pk}/details/")
        assert "digits, version 1" in page and "2.9 KiB" in page and "<code>data</code>" in page
        assert "digits, version 1" in self.page(bob, f"/jobs/{job.pk}/details/")
        retried = services.retry(alice, _ended(job))
        assert submission_of(retried).datasets == submission_of(job).datasets


def _ended(job: Job) -> Job:
    services.cancel(job.submitted_by, job)
    job.refresh_from_db()
    return job


def test_schedules_submit_the_version_that_their_job_read(alice: User, project: Project, digits: Dataset) -> None:
    by_api(alice, project, datasets=[{"dataset": digits.pk, "version": 1}])
    job = Job.objects.get()
    row = schedules.create(alice, job, {"at": time(2), "zone": "UTC", "weekdays": [0]})
    row.refresh_from_db()
    assert submission_for(row).datasets == submission_of(job).datasets
    assert schedules.submit_now(alice, row).datasets.get().version.number == 1


def test_a_version_names_the_jobs_that_use_it_and_cannot_vanish(alice: User, project: Project, digits: Dataset) -> None:
    newest = DatasetVersion.objects.get(dataset=digits, number=2)
    for _ in range(3):
        by_api(alice, project, datasets=[{"dataset": digits.pk}])
    one, two, _ = Job.objects.order_by("pk")
    _ended(one)
    _ended(two)
    trash.keep(alice, one)
    assert uses(newest) == {"waiting": 1, "running": 0, "kept": 1, "ended": 2}
    assert uses(DatasetVersion.objects.get(dataset=digits, number=1)) == {
        **{"waiting": 0, "running": 0, "kept": 0, "ended": 0}
    }
    with pytest.raises(ProtectedError):
        newest.delete()
    two.refresh_from_db()
    trash.delete(alice, two)
    two.refresh_from_db()
    trash.delete_for_good(alice, two)
    trash.erase_due()
    assert uses(newest)["ended"] == 1 and JobDataset.objects.filter(job=two).count() == 0


def test_a_node_gets_the_time_to_fetch_large_datasets(alice: User) -> None:
    node = ready_node("new", 2, facts={"job_datasets": True})
    job = queue(1)
    version = uploaded(job.submitted_by, make_dataset(job.submitted_by, "digits"), {"a": b"12345"})
    JobDataset.objects.create(job=job, version=version, name="digits", path="data", writable=True)
    DatasetVersion.objects.update(size=5_000_000 * 1000)
    turn()
    began = timezone.now()
    Container.objects.filter(node=node).update(state=ContainerState.PREPARING, state_since=began)
    late = rules.PREPARING_SECONDS + 2000
    for seconds, is_stuck in ((late - 10, False), (late + 10, True)):
        now = began + timedelta(seconds=seconds)
        Node.objects.update(last_seen_at=now)
        ((attempt, containers),) = lifecycle._live_attempts()
        found = [due for due in rules.due_actions(attempt, containers, now) if due.reason == StopReason.STUCK]
        assert bool(found) == is_stuck


class TestWhereItRuns:
    def give(self, job: Job) -> DatasetVersion:
        version = uploaded(job.submitted_by, make_dataset(job.submitted_by, "digits"), {"a": b"12345"})
        JobDataset.objects.create(job=job, version=version, name="digits", path="../data", writable=True)
        return version

    def test_agents_of_the_release_before_get_no_job_with_datasets(self) -> None:
        old = ready_node("old", 2)
        job = queue(1)
        version = self.give(job)
        turn()
        job.refresh_from_db()
        assert AgentsWithoutDatasets.code in str(job.waiting_reason) and "old is too old" in job.why_waiting
        with pytest.raises(DatasetsUnknownError):
            datasets_on(old, job)
        ready_node("new", 2, facts={"job_datasets": True})
        turn()
        part = job.attempts.get().containers.get(role="host")
        assert part.node.name == "new"
        assert part.spec["datasets"] == [
            {
                "name": "digits",
                "sha256": version.sha256,
                "manifest_bytes": version.manifest_bytes,
                "size": 5,
                "path": "../data",
                "writable": True,
            }
        ]

    def test_jobs_without_datasets_run_on_old_agents_with_the_specification_that_they_know(self) -> None:
        ready_node("old", 2)
        job = queue(1)
        turn()
        assert "datasets" not in job.attempts.get().containers.get(role="host").spec
        assert submission_of(job).datasets == ()
